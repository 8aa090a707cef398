"""Run by a launcher: shapes the batches of a file, each process its share of the rows, and writes what it got."""

import json
import sys
from pathlib import Path

from rm_plugins.process import this_process
from rm_plugins.shaping import Clip, GroupLength, MissingEnd, Running, ZScore, combine, shape
from rm_plugins.shaping.callback import FILE


def score(prompts, completions, score, **_):
    return score


def safety(prompts, completions, safety, **_):
    return safety


def main(source, folder):
    state = this_process()
    steps = [Running(min_count=4), Clip(low=-2, high=2), GroupLength(weight=0.1), MissingEnd(eos_token_id=2)]
    one = shape(score, steps)
    both = combine(
        [shape(score, [ZScore(scope="batch")]), safety], rule="constrained", cost="safety", limit=-0.5, weights=[2, 1]
    )
    told = []
    for batch in json.loads(Path(source).read_text()):
        size = -(-len(batch["prompts"]) // state.num_processes)  # the last process may have fewer rows
        own = slice(state.process_index * size, (state.process_index + 1) * size)
        rows = {name: column[own] for name, column in batch.items()}
        told.append([reward(trainer_state=None, **rows) for reward in (one, both)])
    out = {"told": told, "state": [one.callback()._shaper.state_dict(), both.callback()._shaper.state_dict()]}
    Path(folder, f"{state.num_processes}-{state.process_index}-{FILE}").write_text(json.dumps(out))


if __name__ == "__main__":
    main(*sys.argv[1:])
