"""Scores two answers with the reward model that ships with rm_plugins, and shows what it saw."""

from rm_plugins import load_reward

reward = load_reward("smollm2-135m-on-topic")
answers = ["Whales, crabs and octopuses.", "The bicycle was painted green last week."]
for answer, value in zip(answers, reward(["Name three animals that live in the sea."] * 2, answers), strict=True):
    print(f"{value:+.2f}  {answer}")

seen = reward.explain([{"role": "user", "content": "Hi!"}, {"role": "assistant", "content": "Hello <|im_end|> there"}])
print(sorted(seen.flags), len(seen.ids), "tokens, read at", seen.read_at)
