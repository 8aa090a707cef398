"""Discovery: one broken plugin never hides another, and names belong to somebody."""

import re
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

from rm_plugins.catalog import discover
from rm_plugins.errors import AmbiguousFamilyError, OptionError, UnknownFamilyError, WrongFamilyError

FAMILY = "Family(name={name!r}, kind='rule', summary='s', load=lambda spec: None)"
GOOD = "from rm_plugins import Family, hookimpl\n@hookimpl\ndef rm_families():\n    yield " + FAMILY
PLUGINS = {
    "good": GOOD.format(name="good"),
    "unimportable": "import nothing_of_that_name",
    "raising": "from rm_plugins import hookimpl\n@hookimpl\ndef rm_families():\n    raise OSError('disk on fire')",
    "misspelt": "from rm_plugins import hookimpl\n@hookimpl\ndef rm_familys():\n    yield 1",
    "wrong_type": "from rm_plugins import hookimpl\n@hookimpl\ndef rm_families():\n    yield 'a string'",
    "no_hook": "x = 1",
    "exits": "raise SystemExit('bye')",
    "no_function": GOOD.format(name="no_function").replace("lambda spec: None", "'polite'"),
    "thief": GOOD.format(name="sequence_classifier"),
    "bad_name": GOOD.format(name="Bad Name"),
}


@pytest.fixture
def install(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))

    def add(name, code, dist=None):
        module = f"plugin_{name}_{len(list(tmp_path.iterdir()))}"
        (tmp_path / f"{module}.py").write_text(code)
        info = tmp_path / f"{(dist or name).replace('-', '_')}-1.0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist or name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[rm_plugins]\n{name} = {module}\n")

    yield add
    for module in [m for m in sys.modules if m.startswith("plugin_")]:
        del sys.modules[module]


def found_now(tmp_path):
    places = [str(tmp_path), *[p for p in sys.path if p != str(tmp_path)]]
    points = [e for d in distributions(path=places) for e in d.entry_points if e.group == "rm_plugins"]
    return discover({(p.name, p.value): p for p in points}.values())


def test_broken_plugins_are_listed_with_their_cause_and_hide_nothing(install, tmp_path):
    for name, code in PLUGINS.items():
        install(name, code, dist=f"dist-{name}")
    catalog = found_now(tmp_path)
    assert {"good", "sequence_classifier"} <= set(catalog.found)
    causes = {failure.name: (failure.provider, failure.error) for failure in catalog.failures}
    assert causes["unimportable"] == (
        "dist-unimportable",
        "ModuleNotFoundError: No module named 'nothing_of_that_name'",
    )
    assert causes["raising"] == ("dist-raising", "OSError: disk on fire")
    assert "rm_familys" in causes["misspelt"][1]
    assert "yielded str, not Family" in causes["wrong_type"][1]
    assert "implements no hook" in causes["no_hook"][1]
    assert causes["exits"][1] == "SystemExit: bye"
    assert "has load='polite'; it must be a function" in causes["no_function"][1]
    assert "Bad Name" in causes["bad_name"][1]


def test_a_stranger_cannot_take_a_built_in_name_and_is_told_what_to_ask_for(install, tmp_path):
    install("thief", PLUGINS["thief"], dist="aaa-thief")
    catalog = found_now(tmp_path)
    assert catalog.found["sequence_classifier"].provider == "rm-plugins"
    [failure] = [f for f in catalog.failures if f.name == "sequence_classifier"]
    assert "ask for 'aaa-thief/sequence_classifier'" in failure.error
    assert catalog.get("aaa-thief/sequence_classifier").kind == "rule"


def test_two_strangers_with_one_name_are_ambiguous_and_reachable_by_provider(install, tmp_path):
    install("twin", GOOD.format(name="twin"), dist="a-one")
    install("twin", GOOD.format(name="twin"), dist="b-two")
    catalog = found_now(tmp_path)
    with pytest.raises(AmbiguousFamilyError, match="a-one/twin, b-two/twin"):
        catalog.get("twin")
    assert catalog.get("b-two/twin").name == "twin"


def test_an_unknown_name_gets_a_suggestion_and_a_failed_plugin_its_cause(install, tmp_path):
    install("raising", PLUGINS["raising"], dist="dist-raising")
    catalog = found_now(tmp_path)
    with pytest.raises(UnknownFamilyError, match="Did you mean 'sequence_classifier'"):
        catalog.get("sequence_clasifier")
    with pytest.raises(UnknownFamilyError, match="dist-raising cannot load: OSError: disk on fire"):
        catalog.get("raising")


def test_a_check_that_fails_leaves_the_other_families_their_say(builder):
    from rm_plugins import Family
    from rm_plugins.catalog import Catalog, Failure, Found, catalog
    from rm_plugins.reward.resolve import resolve

    def fits(checkpoint):
        raise KeyError("gone")

    bad = Family(name="a_bad_one", kind="rule", summary="s", load=print, fits=fits)
    families = Catalog({"a_bad_one": Found(bad, "stranger"), **catalog().found})
    assert resolve(str(builder.classifier()), families).family.name == "sequence_classifier"
    with pytest.raises(WrongFamilyError, match="a_bad_one: its own check failed with KeyError: 'gone'"):
        resolve(str(builder.policy()), families)
    lax = Family(name="a_lax_one", kind="rule", summary="s", load=print, fits=lambda checkpoint: True)
    families = Catalog(
        {"a_lax_one": Found(lax, "stranger"), **catalog().found}, failures=[Failure("mine", "rm-mine", "no torch")]
    )
    assert resolve(str(builder.classifier()), families).family.name == "sequence_classifier"
    with pytest.raises(WrongFamilyError, match=r"mine of rm-mine cannot load: no torch\n .*returned a bool, not a Fit"):
        resolve(str(builder.policy()), families)


def test_an_undeclared_option_is_refused_with_the_list_of_options():
    from rm_plugins.catalog import catalog

    with pytest.raises(OptionError, match=r"no option temperature\. Its options: bos, .*max_tokens_in_flight"):
        catalog().get("sequence_classifier").check_options({"temperature": 1})


def test_the_installed_entry_points_are_those_of_pyproject():
    import tomllib
    from importlib.metadata import distribution

    declared = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    declared = declared["project"]["entry-points"]["rm_plugins"]
    installed = {e.name: e.value for e in distribution("rm-plugins").entry_points if e.group == "rm_plugins"}
    assert installed == declared, "run pip install -e . again"


def test_the_core_never_imports_a_family():
    core = Path(__file__).parents[1] / "rm_plugins"
    assert [p for p in core.rglob("*.py") if re.search(r"(import|from) rm_families", p.read_text())] == []
