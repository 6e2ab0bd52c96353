"""What a file says of a run besides arguments: model, task, data and columns, each with its types and texts."""

from __future__ import annotations

from dataclasses import dataclass

TITLE = ("The data and the model", "モデルとデータ")
REQUIRED = ("model", "task", "train_dataset")


@dataclass(frozen=True)
class RunKey:
    """`kinds`: the types that it takes, by name and without None. `texts`: in English and Japanese."""

    kinds: tuple[str, ...]
    texts: tuple[str, str]
    choices: tuple[str, ...] = ()


def _text(english: str, japanese: str) -> RunKey:
    return RunKey(("str",), (english, japanese))


def _number(english: str, japanese: str) -> RunKey:
    return RunKey(("int",), (english, japanese))


def _column(english: str, japanese: str, usual: str) -> RunKey:
    return _text(f"The column of {english}; None: {usual}.", f"{japanese}の列。None なら {usual}。")


RUN_KEYS: dict[str, RunKey] = {
    "model": _text(
        "A folder or a name for transformers.",
        "transformers のモデルのフォルダーまたは名前。",
    ),
    "model_revision": _text(
        "The branch, tag or commit of a model on the hub; None: its main branch.",
        "Hub にあるモデルのブランチ・タグ・コミット。None なら main ブランチ。",
    ),
    "tokenizer": _text(
        "A folder or a name of a tokenizer; None: that of the model.",
        "トークナイザーのフォルダーまたは名前。None ならモデルのもの。",
    ),
    "torch_dtype": RunKey(
        ("str",),
        (
            "The number format that weights are loaded in; None: float32, or what the model's configuration says.",
            "重みを読み込む数値形式。None なら float32、またはモデルの設定にあるもの。",
        ),
        ("auto", "float32", "float16", "bfloat16"),
    ),
    "peft": RunKey(
        ("dict",),
        (
            "An adapter of the package peft, which is trained instead of the model: type (lora, ...) and the options "
            "of its configuration.",
            "モデル本体の代わりに学習する peft のアダプター。type（lora など）とその設定項目を指定する。",
        ),
    ),
    "quantization": RunKey(
        ("dict",),
        (
            "Options of BitsAndBytesConfig, such as load_in_4bit: true, for the weights beside an adapter.",
            "アダプターとともに使う重みの量子化。load_in_4bit: true など、BitsAndBytesConfig の項目を指定する。",
        ),
    ),
    "task": _text(
        "What the model is for: text-classification, token-classification, question-answering, text-generation, "
        "fill-mask, summarization, translation, text2text-generation, multiple-choice or image-classification.",
        "モデルの用途。text-classification、token-classification、question-answering、text-generation、fill-mask、"
        "summarization、translation、text2text-generation、multiple-choice、image-classification のいずれか。",
    ),
    "train_dataset": _text(
        "A csv, tsv, json, jsonl, parquet or text file, a folder of such, what the package datasets has saved, or a "
        "name on the hub.",
        "学習データ。csv、tsv、json、jsonl、parquet、テキストのファイル、それらのフォルダー、datasets で保存したもの、"
        "または Hub 上の名前。",
    ),
    "eval_dataset": _text(
        "The same, to evaluate on; None: nothing is evaluated.",
        "評価データ。形式は学習データと同じ。None なら評価しない。",
    ),
    "test_dataset": _text(
        "The same, to be measured once at the end; None: nothing is.",
        "最後に一度だけ評価するデータ。形式は学習データと同じ。None なら使わない。",
    ),
    "dataset_config": _text(
        "Which configuration of a data set on the hub.",
        "Hub 上のデータセットの構成名。",
    ),
    "train_split": _text(
        "The split to train on, such as train or train[:1000]; None: train.",
        "学習に使う分割。train や train[:1000] など。None なら train。",
    ),
    "eval_split": _text(
        "The split to evaluate on, of train_dataset if there is no eval_dataset; None: validation, or what is like it.",
        "評価に使う分割。eval_dataset がなければ train_dataset のもの。None なら validation かそれに当たるもの。",
    ),
    "test_split": _text(
        "The split to measure at the end, of train_dataset if there is no test_dataset; None: test.",
        "最後の評価に使う分割。test_dataset がなければ train_dataset のもの。None なら test。",
    ),
    "max_train_samples": _number(
        "Rows to train on, the first ones; None: all.", "学習に使う行数（先頭から）。None なら全部。"
    ),
    "max_eval_samples": _number(
        "Rows to evaluate on, the first ones; None: all.", "評価に使う行数（先頭から）。None なら全部。"
    ),
    "max_test_samples": _number(
        "Rows to measure at the end, the first ones; None: all.", "最後の評価に使う行数（先頭から）。None なら全部。"
    ),
    "text_column": RunKey(
        ("str", "list"),
        (
            "The column to tokenize, or two for pairs; None: text, sentence, content or review.",
            "トークン化する列。文のペアなら 2 つ指定する。None なら text、sentence、content、review のうちあるもの。",
        ),
    ),
    "label_column": RunKey(
        ("str", "list"),
        (
            "The column of the classes, or of the number to predict; several of 0 and 1 for labels that may hold "
            "together; None: label or labels.",
            "クラス、または予測する数値の列。同時に成り立つラベルは 0 と 1 の列を複数指定する。None なら label または "
            "labels。",
        ),
    ),
    "tokens_column": _column(
        "the words of token-classification", "単語リスト（token-classification 用）", "tokens, words"
    ),
    "tags_column": _column("their tags", "単語ごとのタグ", "ner_tags, tags, pos_tags, labels, label"),
    "question_column": _column("questions", "質問", "question"),
    "context_column": _column("passages", "本文", "context, passage"),
    "answers_column": _column(
        "right answers, with text and answer_start", "正解（text と answer_start を持つ）", "answers, answer"
    ),
    "choices_column": RunKey(
        ("str", "list"),
        (
            "The column of lists of choices, or the columns of one each; None: choices, options, endings, or ending0, "
            "ending1, ...",
            "選択肢のリストの列、または選択肢ごとの列。None なら choices、options、endings、または ending0、ending1 "
            "など。",
        ),
    ),
    "prompt_column": _column("prompts", "プロンプト", "prompt, instruction"),
    "completion_column": _column(
        "what answers the prompts", "プロンプトへの応答", "completion, response, answer, output"
    ),
    "messages_column": _column(
        "conversations, lists of role and content",
        "会話（role と content のリスト）",
        "messages, conversations, conversation",
    ),
    "source_column": _column("texts to summarize or translate", "要約・翻訳する文", "document, source, text, ..."),
    "target_column": _column("the right results", "正解の文", "summary, target, output, ..."),
    "image_column": _column("pictures", "画像", "image, img"),
    "max_length": _number(
        "Tokens that a text is cut to; None: 512, for questions 384. Long texts of text-generation and fill-mask go on "
        "in further rows.",
        "テキストを切り詰めるトークン数。None なら 512、question-answering では 384。text-generation と fill-mask の"
        "長い文は次の行に続く。",
    ),
    "max_target_length": _number(
        "Tokens that a summary or a translation is cut to; None: 128.",
        "要約・翻訳の正解を切り詰めるトークン数。None なら 128。",
    ),
    "block_size": _number(
        "Join plain texts and cut them every that many tokens; None: each text is a row.",
        "テキストをつなげ、このトークン数ごとに区切る。None なら 1 テキスト 1 行。",
    ),
    "stride": _number(
        "Tokens that windows of a long passage have in common; None: 128.",
        "長い本文を区切った窓どうしが重なるトークン数。None なら 128。",
    ),
    "max_answer_length": _number(
        "Tokens of the longest answer to a question; None: 30.", "回答の最大トークン数。None なら 30。"
    ),
    "problem_type": RunKey(
        ("str",),
        (
            "What labels of text-classification are; None: numbers with a point are to be predicted, lists are labels "
            "that hold together, others are classes.",
            "text-classification のラベルの種類。None なら、小数は回帰、リストは複数ラベル、その他はクラス。",
        ),
        ("single_label_classification", "multi_label_classification", "regression"),
    ),
    "source_prefix": _text(
        "What stands before each source, such as 'summarize: '.",
        "各入力文の前に付ける文字列。'summarize: ' など。",
    ),
    "source_lang": _text("The tokenizer's code of the source language.", "トークナイザーでの原文の言語コード。"),
    "target_lang": _text("The tokenizer's code of the target language.", "トークナイザーでの訳文の言語コード。"),
}
# Which only a plan has a use for.
NUM_EXAMPLES = RunKey(
    ("int",),
    (
        "Instead of model and data, for a plan: how many rows there are.",
        "モデルとデータの代わりに、行数だけで計画を立てる（kunren plan 用）。",
    ),
)

GENERATION_TITLE = ("Evaluation by generated texts", "生成による評価")
# Arguments of Seq2SeqTrainingArguments, for the tasks whose answers are texts.
GENERATION_KEYS: dict[str, RunKey] = {
    "predict_with_generate": RunKey(
        ("bool",),
        (
            "Generate in evaluations, and compare the texts; for summarization, translation, text2text-generation, and "
            "text-generation with prompts.",
            "評価時に生成し、文どうしを比べる。summarization、translation、text2text-generation、プロンプト付きの "
            "text-generation 用。",
        ),
    ),
    "generation_max_length": _number(
        "max_length of the generation; None: the model's.", "生成の max_length。None ならモデルの設定。"
    ),
    "generation_num_beams": _number(
        "num_beams of the generation; None: the model's.", "生成の num_beams。None ならモデルの設定。"
    ),
    "generation_config": RunKey(
        ("str", "dict"),
        (
            "Settings of the generation in place of the model's: a dict, a folder, a generation_config.json or a name.",
            "モデルの設定に代わる生成の設定。辞書、フォルダー、generation_config.json、または名前。",
        ),
    ),
    "sortish_sampler": RunKey(
        ("bool",),
        (
            "Does nothing, as in transformers; batching='grouped' puts rows of like lengths together.",
            "何もしない（transformers と同じ）。長さの近い行をまとめるには batching='grouped'。",
        ),
    ),
}
