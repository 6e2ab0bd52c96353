"""GENERATED data for the scripts beside this file, where no other is at hand: worlds that a small model learns."""

from __future__ import annotations

import random


def reviews(size: int, seed: int) -> list[dict[str, object]]:
    """What people say of things, good or bad."""
    draw = random.Random(seed)
    words = (
        ["awful", "dull", "broken", "late", "cold", "noisy"],
        ["lovely", "bright", "solid", "quick", "warm", "quiet"],
    )
    things = ["film", "soup", "room", "train", "battery", "phone"]
    labels = [draw.randrange(2) for _ in range(size)]
    said = [(draw.choice(things), *draw.choices(words[label], k=2)) for label in labels]
    return [
        {"text": "the {} was {} and {}".format(*three), "label": label}
        for three, label in zip(said, labels, strict=True)
    ]


def rhymes(size: int, seed: int) -> list[dict[str, str]]:
    """Counting rhymes, in which each line follows from the one before."""
    draw = random.Random(seed)
    names = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    starts = [draw.randrange(10) for _ in range(size)]
    return [{"text": " ".join(names[(start + step) % 10] for step in range(8))} for start in starts]


def orders(size: int, seed: int) -> list[dict[str, list[str]]]:
    """Who buys what, and where."""
    draw = random.Random(seed)
    who, where = ["Ann Lee", "Bob", "Carla Roy", "Dan"], ["Rome", "New York", "Oslo", "San Jose"]
    found = []
    for _ in range(size):
        parts = [("PER", draw.choice(who)), ("O", "buys"), ("O", draw.choice(["bread", "a lamp", "two books"]))]
        parts += [("O", "in"), ("LOC", draw.choice(where))]
        words, tags = [], []
        for kind, text in parts:
            for place, word in enumerate(text.split()):
                words.append(word)
                tags.append("O" if kind == "O" else f"{'I' if place else 'B'}-{kind}")
        found.append({"tokens": words, "ner_tags": tags})
    return found


def facts(size: int, seed: int) -> list[dict[str, object]]:
    """Five facts of a person in any order, and a question on one of them."""
    draw, rows = random.Random(seed), []
    things = {
        "Where does {} live?": ("{} lives in {}.", ["Rome", "New York", "Oslo", "San Jose", "Lima"]),
        "What does {} eat?": ("{} likes to eat {}.", ["fish soup", "rice", "dark bread", "apples", "beans"]),
        "Whom did {} marry?": ("{} is married to {}.", ["Carla Roy", "Dan", "Eva", "Finn Berg", "Gita"]),
        "What is the work of {}?": ("At work {} is a {}.", ["baker", "train driver", "nurse", "poet", "judge"]),
        "Which colour does {} wear?": ("{} always wears {}.", ["dark blue", "red", "light green", "white", "grey"]),
    }
    for place in range(size):
        who, asked, passage, answers = draw.choice(["Ann", "Bob Hill", "Cho"]), draw.choice(list(things)), "", {}
        for question, (said, choices) in draw.sample(list(things.items()), len(things)):
            answer = draw.choice(choices)
            sentence = said.format(who, answer)
            if question == asked:
                answers = {"text": [answer], "answer_start": [len(passage) + sentence.rindex(answer)]}
            passage += sentence + " "
        rows.append({"id": str(place), "context": passage, "question": asked.format(who), "answers": answers})
    return rows


def notes(size: int, seed: int) -> list[dict[str, str]]:
    """Three things that happened, of which the first is the summary."""
    draw = random.Random(seed)
    who, where = ["ann", "bob", "carla", "dan"], ["rome", "oslo", "lima", "paris"]
    did = ["lost a hat", "sold the car", "won the race", "met a friend"]
    said = [[f"{draw.choice(who)} {draw.choice(did)} in {draw.choice(where)}." for _ in range(3)] for _ in range(size)]
    return [{"document": " ".join(three), "summary": three[0]} for three in said]


def phrases(size: int, seed: int) -> list[dict[str, str]]:
    """Simple English sentences, and the same in Japanese, whose verb comes last."""
    draw = random.Random(seed)
    things = {"the dog": "犬", "the cat": "猫", "the child": "子供", "the teacher": "先生", "the bird": "鳥"}
    verbs = {"sees": "見る", "calls": "呼ぶ", "likes": "好む", "helps": "助ける"}
    drawn = [(*draw.sample(sorted(things), 2), draw.choice(sorted(verbs))) for _ in range(size)]
    return [
        {"en": f"{one} {verb} {other} .", "ja": f"{things[one]}は{things[other]}を{verbs[verb]}。"}
        for one, other, verb in drawn
    ]
