"""What `kunren check` says: names of checks, and for each thing found a detail and a remedy, in two languages."""

from __future__ import annotations

NAMES = {
    "arguments": {"en": "arguments", "ja": "引数"},
    "task": {"en": "task", "ja": "タスク"},
    "data": {"en": "data", "ja": "データ"},
    "model": {"en": "model", "ja": "モデル"},
    "tokenizer": {"en": "tokenizer", "ja": "トークナイザー"},
    "columns": {"en": "columns", "ja": "列"},
    "rows": {"en": "rows", "ja": "行の前処理"},
    "weights": {"en": "weights", "ja": "重み"},
    "shared rows": {"en": "shared rows", "ja": "重複する行"},
    "collator": {"en": "collator", "ja": "コレーター"},
    "empty text": {"en": "empty text", "ja": "空のテキスト"},
    "vocabulary": {"en": "vocabulary", "ja": "語彙"},
    "labels": {"en": "labels", "ja": "ラベル"},
    "positions": {"en": "positions", "ja": "位置埋め込み"},
    "truncation": {"en": "truncation", "ja": "切り詰め"},
    "counted labels": {"en": "counted labels", "ja": "損失の対象"},
    "plan": {"en": "plan", "ja": "学習計画"},
    "memory": {"en": "memory", "ja": "メモリー"},
    "disk": {"en": "disk", "ja": "ディスク"},
    "loss": {"en": "loss", "ja": "損失"},
    "gradients": {"en": "gradients", "ja": "勾配"},
    "step": {"en": "step", "ja": "更新"},
    "evaluation": {"en": "evaluation", "ja": "評価"},
    "best model": {"en": "best model", "ja": "ベストモデル"},
    "generation": {"en": "generation", "ja": "生成"},
    "saving": {"en": "saving", "ja": "保存"},
    "resuming": {"en": "resuming", "ja": "再開"},
    "trackers": {"en": "trackers", "ja": "トラッカー"},
    "hub": {"en": "hub", "ja": "Hub"},
}
WORDS = {
    "en": {
        "check": "check",
        "verdict": "verdict",
        "detail": "detail",
        "ok": "ok",
        "warning": "warning",
        "failed": "FAILED",
        "skipped": "not tried",
        "counts": "{failed} failed, {warning} to look at, {ok} ok, in {seconds} s. Nothing was trained, nothing is "
        "left behind.",
    },
    "ja": {
        "check": "確認項目",
        "verdict": "判定",
        "detail": "内容",
        "ok": "ok",
        "warning": "注意",
        "failed": "失敗",
        "skipped": "未実施",
        "counts": "失敗 {failed} 件、注意 {warning} 件、ok {ok} 件（{seconds} 秒）。学習はせず、何も残していない。",
    },
}
# A detail, and a remedy, which may be empty.
TEXTS: dict[str, dict[str, tuple[str, str]]] = {
    "error": {"en": ("{error}", ""), "ja": ("{error}", "")},
    "skipped": {"en": ("{because} failed", ""), "ja": ("「{because}」が失敗したため", "")},
    "arguments": {
        "en": ("{count} differ from the defaults", ""),
        "ja": ("既定値と異なるもの {count} 個", ""),
    },
    "missing keys": {
        "en": ("{names} is not given", "`kunren train --help {first}`"),
        "ja": ("{names} の指定がない", "`kunren train --help {first}`"),
    },
    "task": {"en": ("{task}, with {model}", ""), "ja": ("{task}（{model}）", "")},
    "data": {"en": ("rows: {rows}", ""), "ja": ("行数: {rows}", "")},
    "model": {"en": ("{kind} in {place}", ""), "ja": ("{place} の {kind}", "")},
    "tokenizer": {"en": ("{kind}, {count:,} tokens", ""), "ja": ("{kind}、トークン {count:,} 種", "")},
    "no tokenizer": {
        "en": ("there is none; the rows are tokens already", "set `tokenizer` if you want it saved with the model"),
        "ja": ("ない（データはトークン化済み）", "モデルと一緒に保存したければ `tokenizer` を指定する"),
    },
    "unknown tokens": {
        "en": ("{share} of the tokens of the rows are unknown to it", "take the tokenizer of this model and language"),
        "ja": ("トークンの {share} が未知語", "このモデルと言語のトークナイザーを使う"),
    },
    "columns": {"en": ("{columns}", ""), "ja": ("{columns}", "")},
    "rows": {"en": ("all of {sets} can be encoded: {columns}", ""), "ja": ("{sets} の全行を変換できた: {columns}", "")},
    "weights": {
        "en": ("{name}: {count:,} numbers, {trained:,} of them trained", ""),
        "ja": ("{name}: パラメーター {count:,} 個、うち学習対象 {trained:,} 個", ""),
    },
    "random weights": {
        "en": ("{place} has no weights: training starts from random ones", "give a folder with weights, if not meant"),
        "ja": ("{place} に重みがない。乱数から学習する", "意図していなければ、重みのあるフォルダーを指定する"),
    },
    "nothing trained": {
        "en": ("no weight of {name} is trained", "unfreeze some: parameter.requires_grad_(True)"),
        "ja": ("{name} に学習対象の重みがない", "学習する重みの requires_grad を True にする"),
    },
    "script": {"en": ("{source} made a {name}", ""), "ja": ("{source} が {name} を作った", "")},
    "collator": {
        "en": ("first, longest and last rows of {sets}: {columns}", ""),
        "ja": ("{sets} の先頭・最長・末尾の行: {columns}", ""),
    },
    "collator fails": {
        "en": (
            "the {which} rows of {key} ({rows}) cannot be put into a batch: {error}",
            "look at these rows, or give another data_collator",
        ),
        "ja": ("{key} の{which}の行（{rows}）をバッチにできない: {error}", "これらの行か data_collator を直す"),
    },
    "empty text": {
        "en": ("{count:,} of {total:,} rows of {key} have no text (row {first})", "leave them out"),
        "ja": ("{key} の {total:,} 行中 {count:,} 行にテキストがない（行 {first}）", "除く"),
    },
    "no empty text": {"en": ("none in {total:,} rows", ""), "ja": ("{total:,} 行中 0 行", "")},
    "vocabulary": {
        "en": ("the largest token is {largest:,}; the embedding has {size:,}", ""),
        "ja": ("最大のトークン番号 {largest:,}、埋め込みは {size:,} 語", ""),
    },
    "vocabulary too small": {
        "en": (
            "row {row} of {key} has the token {largest:,}, and the embedding of the model has {size:,}",
            "take the tokenizer of this model, or call model.resize_token_embeddings(len(tokenizer))",
        ),
        "ja": (
            "{key} の行 {row} にトークン {largest:,} があるが、モデルの埋め込みは {size:,} 語",
            "このモデルのトークナイザーを使うか、model.resize_token_embeddings(len(tokenizer)) を呼ぶ",
        ),
    },
    "tokenizer larger": {
        "en": (
            "the tokenizer has {tokens:,} tokens and the embedding {size:,}; the rows have none of the others",
            "model.resize_token_embeddings(len(tokenizer)), before such a token comes",
        ),
        "ja": (
            "トークナイザーは {tokens:,} 語、埋め込みは {size:,} 語（超えるトークンはデータにはない）",
            "model.resize_token_embeddings(len(tokenizer)) を呼んでおく",
        ),
    },
    "labels": {
        "en": ("from {smallest:,} to {largest:,}; the head has {size:,} outputs", ""),
        "ja": ("{smallest:,} から {largest:,}、出力は {size:,} 個", ""),
    },
    "labels out of range": {
        "en": (
            "row {row} of {key} has the label {label:,}, and the model has {size:,} outputs (0 to {last:,})",
            "number the classes from 0, set num_labels, or use -100 for what shall not count",
        ),
        "ja": (
            "{key} の行 {row} のラベルは {label:,} だが、モデルの出力は {size:,} 個（0 から {last:,}）",
            "クラスを 0 から番号付けし num_labels を合わせる。数えないものは -100 にする",
        ),
    },
    "positions": {
        "en": ("the longest batch has {longest:,} tokens a row; the model knows {limit:,} positions", ""),
        "ja": ("最長のバッチは 1 行 {longest:,} トークン、モデルは {limit:,} 位置まで", ""),
    },
    "positions too few": {
        "en": (
            "rows have up to {longest:,} tokens, and the model has embeddings of {limit:,} positions",
            "set max_length to {limit}, or shorten the rows",
        ),
        "ja": ("最長の行は {longest:,} トークンだが、モデルの位置埋め込みは {limit:,}", "max_length を {limit} にする"),
    },
    "positions beyond": {
        "en": (
            "rows have up to {longest:,} tokens, and the model was made for {limit:,}",
            "set max_length to {limit}, unless longer rows are meant",
        ),
        "ja": (
            "最長の行は {longest:,} トークンで、モデルの想定は {limit:,} まで",
            "意図していなければ max_length を {limit} にする",
        ),
    },
    "shared rows": {
        "en": (
            "the evaluation sees rows of the training: {count:,} of {seen:,} rows of {key} that were looked at are in "
            "train_dataset",
            "evaluate on rows of its own: eval_dataset, or train_split and eval_split",
        ),
        "ja": (
            "評価が学習の行を含む: 調べた {key} の {seen:,} 行中 {count:,} 行が train_dataset にある",
            "別の行で評価する（eval_dataset、または train_split と eval_split）",
        ),
    },
    "truncation": {
        "en": ("{share} of the rows of {key} are cut to max_length={length} (or just as long)", "{remedy}"),
        "ja": ("{key} の {share} が max_length={length} で切られている（またはちょうどその長さ）", "{remedy}"),
    },
    "counted labels": {
        "en": ("in all of {seen} rows that were looked at", ""),
        "ja": ("調べた {seen} 行のすべてにある", ""),
    },
    "rows without counted labels": {
        "en": (
            "{count} of {seen} rows of {key} that were looked at have no label that counts (row {first}): nothing is "
            "learned from them",
            "look at truncation, and at labels of -100",
        ),
        "ja": (
            "{key} の調べた {seen} 行中 {count} 行に、損失に数えるラベルがない（行 {first}）。学習に寄与しない",
            "切り詰めと -100 のラベルを見直す",
        ),
    },
    "plan": {
        "en": ("{steps:,} steps of {rows} rows{time}", ""),
        "ja": ("1 ステップ {rows} 行で {steps:,} ステップ{time}", ""),
    },
    "plan warning": {"en": ("{warning}", ""), "ja": ("{warning}", "")},
    "memory": {
        "en": ("{peak} at most, measured with {form}; {free} are free on {device}", ""),
        "ja": ("最大 {peak}（{form} で実測）。{device} の空きは {free}", ""),
    },
    "memory short": {
        "en": ("{peak} at most, measured with {form}, and {free} are free on {device}", "{remedy}"),
        "ja": ("最大 {peak}（{form} で実測）だが、{device} の空きは {free}", "{remedy}"),
    },
    "memory unknown": {"en": ("not measured: {why}", ""), "ja": ("測れない: {why}", "")},
    "memory ran out": {
        "en": ("not enough for rows {form} together: {why}", "{remedy}"),
        "ja": ("行 {form} を一度に計算するメモリーがない: {why}", "{remedy}"),
    },
    "disk": {
        "en": ("{count} checkpoints at once, {needed}; {free} are free", ""),
        "ja": ("チェックポイントは同時に {count} 個、{needed}。空きは {free}", ""),
    },
    "disk short": {
        "en": (
            "{count} checkpoints at once take {needed}, and {free} are free",
            "set save_total_limit or save_only_model=True, or choose another output_dir",
        ),
        "ja": (
            "チェックポイントが同時に {count} 個で {needed}、空きは {free}",
            "save_total_limit か save_only_model を設定するか、output_dir を変える",
        ),
    },
    "no checkpoints": {
        "en": ("no checkpoints; the model takes {needed}, and {free} are free", ""),
        "ja": ("チェックポイントなし。モデルは {needed}、空きは {free}", ""),
    },
    "disk unknown": {"en": ("not known: {why}", ""), "ja": ("不明: {why}", "")},
    "not writable": {
        "en": ("nothing can be written into {folder}: {error}", "choose another output_dir"),
        "ja": ("{folder} に書き込めない: {error}", "output_dir を変える"),
    },
    "loss": {"en": ("{values}", ""), "ja": ("{values}", "")},
    "loss not finite": {
        "en": (
            "the loss of the {which} rows ({rows}) is {value}",
            "look at labels and inputs of these rows; fp16 may overflow (bf16 does not)",
        ),
        "ja": ("{which}の行（{rows}）の損失が {value}", "その行の入力とラベルを見る。fp16 なら bf16 を試す"),
    },
    "step fails": {
        "en": ("the {which} rows ({rows}) cannot be computed: {error}", ""),
        "ja": ("{which}の行（{rows}）を計算できない: {error}", ""),
    },
    "gradients": {
        "en": ("finite, and in all {count} weights that are trained", ""),
        "ja": ("学習対象の重み {count} 個すべてに届き、有限", ""),
    },
    "no gradients": {
        "en": ("none of the weights that are trained gets one", "the loss has to depend on the model's parameters"),
        "ja": ("学習対象の重みのどれにも届かない", "損失がモデルの重みに依存するようにする"),
    },
    "some without gradients": {
        "en": (
            "{missing} of {count} weights that are trained get none: {names}",
            "freeze them if they are not used: parameter.requires_grad_(False)",
        ),
        "ja": (
            "学習対象の重み {count} 個中 {missing} 個に届かない: {names}",
            "使わないなら requires_grad を False にする",
        ),
    },
    "gradients not finite": {
        "en": ("not finite: {names}", "look at what the model computes there; a smaller learning rate does not help"),
        "ja": ("有限でない: {names}", "そこでの計算を見直す"),
    },
    "data that is read once": {
        "en": ("the data can be gone through once only, and what is read here would be missing in the run", ""),
        "ja": ("データは一度しか読めず、ここで読むと学習で欠ける", ""),
    },
    "step": {
        "en": ("taken on a copy with {optimizer}; the weights stay finite", ""),
        "ja": ("コピーの上で {optimizer} により実施、重みは有限のまま", ""),
    },
    "weights not finite": {
        "en": ("after one step these are not finite: {names}", "lower learning_rate, or look at optim_args"),
        "ja": ("1 回の更新で有限でなくなった: {names}", "learning_rate を下げるか optim_args を見直す"),
    },
    "evaluation": {"en": ("{metrics}, of {rows} rows", ""), "ja": ("{rows} 行で {metrics}", "")},
    "evaluation fails": {
        "en": ("{error}", "it would end the first evaluation of the run: mend it, or change metrics"),
        "ja": ("{error}", "学習中の最初の評価で失敗する。直すか metrics を変える"),
    },
    "evaluation of some fails": {
        "en": ("on {rows} rows: {error}", "if compute_metrics needs the whole evaluation set, this says nothing"),
        "ja": ("{rows} 行で: {error}", "compute_metrics が評価データ全体を必要とするなら問題ではない"),
    },
    "evaluation not finite": {
        "en": ("not finite: {metrics}", "look at the labels of the evaluation set"),
        "ja": ("有限でない: {metrics}", "評価データのラベルを見直す"),
    },
    "best model": {"en": ("{name} is {value}", ""), "ja": ("{name} は {value}", "")},
    "generation": {
        "en": ("{rows} rows, up to {tokens} tokens, such as {example}", ""),
        "ja": ("{rows} 行、最大 {tokens} トークン。例: {example}", ""),
    },
    "saving": {
        "en": ("{size} in {seconds} s on the disk of {folder}, and equal after loading", ""),
        "ja": ("{folder} のディスクに {size} を {seconds} 秒で書き、読み直して一致", ""),
    },
    "saving differs": {
        "en": ("after loading these weights are others: {names}", "see what _save or save_pretrained leaves out"),
        "ja": ("読み直すと異なる重み: {names}", "_save、save_pretrained が書かないものを確かめる"),
    },
    "resuming": {"en": ("from {checkpoint}, which is whole", ""), "ja": ("{checkpoint} から再開できる", "")},
    "no checkpoint to resume": {
        "en": ("there is no checkpoint in {folder}: training starts from the beginning", ""),
        "ja": ("{folder} にチェックポイントがない。最初から学習する", ""),
    },
    "other checkpoints": {
        "en": (
            "{folder} holds checkpoints of another run ({names}), and this one starts from the beginning",
            "choose another output_dir, or resume: --resume",
        ),
        "ja": (
            "{folder} に別の学習のチェックポイント（{names}）があるが、最初から学習する",
            "output_dir を変えるか、--resume で再開する",
        ),
    },
    "tracker": {
        "en": ("{name} is installed, and has logged offline", ""),
        "ja": ("{name} はオフラインで記録できた", ""),
    },
    "tracker fails": {
        "en": ("{name}: {error}", "mend it, or take it out of report_to; a training goes on without it"),
        "ja": ("{name}: {error}", "直すか report_to から除く。学習自体は続く"),
    },
    "hub": {"en": ("{user} may write to {repository}", ""), "ja": ("{user} は {repository} に書き込める", "")},
    "hub new": {
        "en": ("{user} may make {repository}, which is not there yet", ""),
        "ja": ("{user} は {repository} を作れる（まだない）", ""),
    },
    "hub offline": {
        "en": ("not asked: HF_HUB_OFFLINE is set, and with it a training that pushes is refused", "unset it"),
        "ja": ("HF_HUB_OFFLINE があるため確認していない。push する学習は拒否される", "解除する"),
    },
    "hub namespace": {
        "en": ("{user} may not write into {namespace}", "set hub_model_id to {user}/{name}, or to one of: {others}"),
        "ja": ("{user} は {namespace} に書き込めない", "hub_model_id を {user}/{name} か次のどれかにする: {others}"),
    },
    "hub reads only": {
        "en": ("the token of {user} may read and not write", "take a token with write access"),
        "ja": ("{user} のトークンは読み取り専用", "書き込みできるトークンを使う"),
    },
}
BATCHES = {
    "first": {"en": "first", "ja": "先頭"},
    "longest": {"en": "longest", "ja": "最長"},
    "last": {"en": "last", "ja": "末尾"},
    "empty": {"en": "empty", "ja": "空"},
}
SENTENCES = {
    "truncated": {
        "en": "raise max_length, or split the rows, if the ends matter",
        "ja": "末尾が必要なら max_length を上げるか、行を分ける",
    },
    "smaller": {
        "en": "a smaller per_device_train_batch_size with more gradient_accumulation_steps gives the same updates; "
        "activation_checkpointing and bf16 save memory",
        "ja": "per_device_train_batch_size を下げ gradient_accumulation_steps を上げれば更新は同じ。"
        "activation_checkpointing や bf16 でも減る",
    },
    "time": {"en": ", about {} besides evaluating and saving", "ja": "、評価と保存を除き約 {}"},
}
