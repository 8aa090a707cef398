"""Run by a launcher: shapes the batches of a file, each process its share of the rows, and writes what it got."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

from rm_plugins.process import this_process
from rm_plugins.shaping import Clip, GroupLength, MissingEnd, Running, ZScore, combine, shape
from rm_plugins.shaping.callback import FILE


def score(prompts, completions, score, **_):
    return score


def safety(prompts, completions, safety, **_):
    return safety


def main(source, folder):
    state = this_process()
    one, both = rewards()
    told = []
    batches = json.loads(Path(source).read_text())
    for number, batch in enumerate(batches):
        if number == len(batches) - 1:  # killed and resumed: new rewards take back what rank 0 saved
            saved = folder_of(folder, state.num_processes)
            for reward in (one, both):
                reward.callback().on_save(saved, at_step(state.is_main_process), None)
            state.wait_for_everyone()
            one, both = rewards()
            for reward in (one, both):
                reward.callback().on_train_begin(saved, at_step(state.is_main_process), None)
        size = -(-len(batch["prompts"]) // state.num_processes)  # the last process may have fewer rows
        own = slice(state.process_index * size, (state.process_index + 1) * size)
        rows = {name: column[own] for name, column in batch.items()}
        told.append([reward(trainer_state=None, **rows) for reward in (one, both)])
    out = {
        "told": told,
        "state": [{name: s.state_dict() for name, s in reward.shapers().items()} for reward in (one, both)],
    }
    Path(folder, f"{state.num_processes}-{state.process_index}-{FILE}").write_text(json.dumps(out))


def folder_of(folder, processes):
    return SimpleNamespace(output_dir=str(Path(folder, f"run-{processes}")))


def at_step(is_main):
    return SimpleNamespace(global_step=2, is_world_process_zero=is_main)


def rewards():
    """The two rewards, as new."""
    steps = [Running(min_count=4), Clip(low=-2, high=2), GroupLength(weight=0.1), MissingEnd(eos_token_id=2)]
    one = shape(score, steps)
    both = combine(
        [shape(score, [ZScore(scope="batch")]), safety], rule="constrained", cost="safety", limit=-0.5, weights=[2, 1]
    )
    return one, both


if __name__ == "__main__":
    main(*sys.argv[1:])
