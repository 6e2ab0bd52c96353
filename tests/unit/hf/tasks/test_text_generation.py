"""text-generation: plain texts, answers to prompts, conversations; and fill-mask, whose rows are made alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest
import transformers
from parity.tokenizer import make_tokenizer
from unit.hf.tasks.runs import assert_same, bert, by_hand, gpt2, refused, results, train, words, write

import kunren
from kunren.hf.tasks.language_rows import encode_blocks, encode_pieces
from kunren.hf.tasks.text_generation import answers_in, encode_completions, encode_conversations, tokens_of_pieces

TEMPLATE = (
    "{% for m in messages %}{{ ' w40 ' if m.role == 'user' else ' w41 ' }}{{ m.content }}{{ ' w42 ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ ' w41 ' }}{% endif %}"
)
END = 3  # of the tokenizer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATE
    return gpt2(tmp_path_factory.mktemp("gpt2"), tokenizer)


def texts(count: int, shift: int = 0) -> list[dict[str, Any]]:
    return [{"text": words(*((row + shift + word) % 30 for word in range(3 + row % 5)))} for row in range(count)]


def pairs(count: int, shift: int = 0) -> list[dict[str, Any]]:
    return [
        {"prompt": words(row % 30, (row + shift) % 30), "completion": words((row + 1) % 30, row % 7)}
        for row in range(count)
    ]


def chats(count: int, shift: int = 0) -> list[dict[str, Any]]:
    return [
        {
            "messages": [
                {"role": "user", "content": words(row % 30, (row + shift) % 30)},
                {"role": "assistant", "content": words(row % 9)},
                {"role": "user", "content": words(row % 5)},
                {"role": "assistant", "content": words(row % 3, row % 4)},
            ]
        }
        for row in range(count)
    ]


def files(folder: Path, model: Path, make: Any) -> dict[str, Any]:
    sets = {"train_dataset": make(12), "eval_dataset": make(5, 3)}
    paths = {key: str(write(folder / f"{key}.jsonl", rows)) for key, rows in sets.items()}
    return {"task": "text-generation", "model": str(model), **paths}


def ids(text: str) -> list[int]:
    return [int(word[1:]) + 5 for word in text.split()]


def row_of_text(row: dict[str, Any]) -> dict[str, Any]:
    return {"input_ids": ids(row["text"])}


def row_of_pair(row: dict[str, Any]) -> dict[str, Any]:
    before, answer = ids(row["prompt"]), [*ids(row["completion"]), END]
    return {"input_ids": before + answer, "labels": [-100] * len(before) + answer}


def row_of_chat(row: dict[str, Any]) -> dict[str, Any]:
    tokens, labels = [], []
    for turn in row["messages"]:
        said = [*ids(turn["content"]), 42 + 5]
        is_answer = turn["role"] == "assistant"
        tokens += [(41 if is_answer else 40) + 5, *said]
        labels += [-100, *(said if is_answer else [-100] * len(said))]
    return {"input_ids": tokens, "labels": labels}


@pytest.mark.parametrize(
    ("make", "row_of"),
    [(texts, row_of_text), (pairs, row_of_pair), (chats, row_of_chat)],
    ids=["texts", "pairs", "chats"],
)
def test_the_run_is_that_of_a_script(make: Any, row_of: Any, model: Path, tmp_path: Path) -> None:
    assert train(tmp_path, **files(tmp_path, model, make)) == 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    collator: Any = kunren.DataCollatorForLanguageModeling(tokenizer, mlm=False)
    if make is not texts:
        collator = kunren.DataCollatorForTokenClassification(tokenizer)
    trainer = by_hand(
        tmp_path,
        lambda: transformers.AutoModelForCausalLM.from_pretrained(model),
        [datasets.Dataset.from_list([row_of(row) for row in rows]) for rows in (make(12), make(5, 3))],
        data_collator=collator,
        processing_class=tokenizer,
        arguments={"metrics": ["perplexity"]},
    )
    assert_same(trainer, tmp_path, "eval_perplexity")


def test_masked_words(tmp_path: Path) -> None:
    model = bert(tmp_path / "bert")
    assert train(tmp_path, **{**files(tmp_path, model, texts), "task": "fill-mask"}) == 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    trainer = by_hand(
        tmp_path,
        lambda: transformers.AutoModelForMaskedLM.from_pretrained(model),
        [datasets.Dataset.from_list([row_of_text(row) for row in rows]) for rows in (texts(12), texts(5, 3))],
        data_collator=kunren.DataCollatorForLanguageModeling(tokenizer),
        processing_class=tokenizer,
    )
    assert_same(trainer, tmp_path)


def test_long_texts_go_on_in_further_rows() -> None:
    made = encode_pieces({"text": [words(*range(7)), words(1)]}, make_tokenizer(), "text", 3)
    assert made["input_ids"] == [[5, 6, 7], [8, 9, 10], [11], [6]]
    assert [len(mask) for mask in made["attention_mask"]] == [3, 3, 1, 1] and "overflow_to_sample_mapping" not in made


def test_blocks_have_every_token_and_the_ends_of_texts() -> None:
    made = encode_blocks({"text": [words(0, 1, 2), words(3), ""]}, make_tokenizer(), "text", 4)
    assert made == {"input_ids": [[5, 6, 7, END], [8, END]]}
    endless = encode_blocks({"text": [words(0), words(1)]}, make_tokenizer(eos_token=None), "text", 4)
    assert endless == {"input_ids": [[5, 6]]}


def test_a_file_of_text_is_one_document_in_blocks(model: Path, tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("w1 w2\nw3\n" * 10)
    options = {"task": "text-generation", "model": str(model), "train_dataset": str(tmp_path / "train.txt")}
    assert train(tmp_path, **options, block_size=8, num_train_epochs=1, per_device_train_batch_size=1) == 0
    assert results(tmp_path)["epoch"] == 1.0
    assert (tmp_path / "out" / "trainer_state.json").read_text().count('"global_step": 4,') == 1  # 30 words and the end


def test_a_prompt_that_leaves_no_room_is_left_out() -> None:
    batch = {"ask": [words(1, 2), words(1, 2, 3)], "say": [words(4, 5), words(6)]}
    made = encode_completions(batch, make_tokenizer(), "ask", "say", 3)
    assert made == {"input_ids": [[6, 7, 9]], "labels": [[-100, -100, 9]]}


def test_answers_in_a_conversation(model: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    turns = [
        {"role": "user", "content": "w1", "name": None},
        {"role": "assistant", "content": "w2"},
        {"role": "user", "content": "w3"},
    ]
    pieces = answers_in(turns, tokenizer)
    assert [(piece.split(), is_answer) for piece, is_answer in pieces] == [
        (["w40", "w1", "w42", "w41"], False),
        (["w2", "w42"], True),
        (["w40", "w3", "w42"], False),
    ]
    short = encode_conversations({"messages": [turns]}, tokenizer, "messages", 4)
    assert short == {"input_ids": [], "labels": []}
    tokenizer.chat_template = "{{ messages | length }}" + TEMPLATE
    with pytest.raises(ValueError, match="writes a turn otherwise"):
        answers_in(turns, tokenizer)


def test_a_token_is_the_answer_s_if_all_of_it_is() -> None:
    pieces = [("w1 w", False), ("2 w3", True), (" w4", False)]
    tokenizer = make_tokenizer()
    assert tokens_of_pieces(pieces, tokenizer) == ([6, 7, 8, 9], [-100, -100, 8, -100])

    class Slow:
        is_fast = False

        def __call__(self, text: str, add_special_tokens: bool) -> Any:
            return tokenizer(text, add_special_tokens=add_special_tokens)

    whole = [("w1", False), ("w2 w3", True), ("w4", False)]
    assert tokens_of_pieces(whole, Slow()) == ([6, 7, 8, 9], [-100, 7, 8, -100])


def test_generated_answers_are_compared(model: Path, tmp_path: Path) -> None:
    options = files(tmp_path, model, pairs)
    assert train(tmp_path, **options, predict_with_generate=True, generation_max_length=8) == 0
    assert 0 <= results(tmp_path)["eval_chrf"] <= 100 and "eval_exact_match" in results(tmp_path)


def test_mistakes(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = files(tmp_path, model, chats)
    plain = gpt2(tmp_path / "plain")
    answer = refused(capsys, tmp_path, **{**options, "model": str(plain)})
    assert "'messages' holds conversations, and the tokenizer of" in answer and "no chat template" in answer
    other = write(tmp_path / "other.jsonl", [{"messages": [{"role": "user", "content": "w1"}]}])
    answer = refused(capsys, tmp_path, **{**options, "train_dataset": str(other)})
    assert "'messages' in row 0 of train_dataset has no turn of the role 'assistant'" in answer
    answer = refused(capsys, tmp_path, **options, block_size=8)
    assert "block_size is for plain texts" in answer
    assert "block_size is 0: it has to be a whole number above 0" in refused(capsys, tmp_path, **options, block_size=0)
    answer = refused(capsys, tmp_path, **{**options, "model": str(bert(tmp_path / "bert"))})
    assert "A model of the type 'bert' does not fit text-generation: it fits text-classification" in answer
    assert "is_decoder: true" in answer
    answer = refused(capsys, tmp_path, **{**options, "task": "fill-mask", "text_column": "messages"})
    assert "A model of the type 'gpt2' does not fit fill-mask: it fits text-classification" in answer
    long = write(tmp_path / "long.jsonl", [{"prompt": words(*range(9)), "completion": "w1"}])
    answer = refused(capsys, tmp_path, **{**options, "train_dataset": str(long), "eval_dataset": None}, max_length=4)
    assert "train_dataset has no row that text-generation can use" in answer
    half = write(tmp_path / "half.jsonl", [{"prompt": "w1", "text_of": "w1"}])
    answer = refused(capsys, tmp_path, **{**options, "train_dataset": str(half), "eval_dataset": None})
    assert "No column is called completion or response" in answer and "the columns are: prompt, text_of" in answer
    answer = refused(capsys, tmp_path, **files(tmp_path, model, texts), predict_with_generate=True)
    assert "predict_with_generate needs prompts" in answer
