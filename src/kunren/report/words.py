"""Every text of the page, the picture and `kunren watch`, in English and in Japanese.

Names of metrics and of arguments are not translated: they are what is searched for in the code.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

LANGUAGES = ("en", "ja")

# key: (English, Japanese); {braces} are filled in with str.format
_TEXTS: dict[str, tuple[str, str]] = {
    # `kunren watch` in a terminal
    "quiet": ("last log {time} ago", "最後の記録から {time}"),
    "waiting": ("Waiting for the first log in {folder}", "最初の記録を待っています：{folder}"),
    "more": ("and {count} more", "ほか {count} 件"),
    # the run
    "run_report": ("Run report", "学習レポート"),
    "comparison": ("Comparison of {count} runs", "{count} 件の学習の比較"),
    "run": ("Run", "学習"),
    "runs": ("Runs", "学習の一覧"),
    "runs_left_out": ("{count} more runs are not shown.", "ほか {count} 件の学習は表示していません。"),
    "folder": ("Folder", "フォルダー"),
    "outcome": ("Outcome", "状態"),
    "finished": ("Finished", "完了"),
    "stopped": ("Stopped early", "途中で停止"),
    "failed": ("Failed", "エラーで終了"),
    "running": ("Running", "学習中"),
    "interrupted": ("Interrupted", "中断"),
    "earlier": (
        "The folder holds an earlier training, which was not resumed and is not told of here.",
        "このフォルダーには以前の学習が 1 件ありますが、再開されたものではないため、ここには含めていません。",
    ),
    "earlier_many": (
        "The folder holds {count} earlier trainings, which were not resumed and are not told of here.",
        "このフォルダーには以前の学習が {count} 件ありますが、再開されたものではないため、ここには含めていません。",
    ),
    "stopped_note": (
        "It was asked to stop before its last step: by a callback, a signal or a limit.",
        "最後のステップの前に、コールバック、シグナル、または制限によって停止しました。",
    ),
    "failed_note": ("The training ended with an error:", "学習は次のエラーで終了しました。"),
    "failed_where": ("Where in the code", "エラーの発生箇所"),
    "interrupted_note": (
        "It has no end on record: the process was killed, or the machine went down.",
        "終了の記録がありません。プロセスが強制終了されたか、マシンが停止したと考えられます。",
    ),
    "steps": ("Steps", "ステップ数"),
    "of_steps": ("of {count}", "/ {count}"),
    "duration": ("Duration", "所要時間"),
    "remaining": ("{time} left", "残り {time}"),
    "none": ("none", "なし"),
    "unknown": ("unknown", "不明"),
    "last_loss": ("Last loss", "最新の損失"),
    "last": ("Last", "最終値"),
    "best": ("Best", "最良値"),
    "best_is": ("best {value} ({where})", "最良値 {value}（{where}）"),
    "last_is": ("{value} ({where})", "{value}（{where}）"),
    "at_step": ("at step {step}", "ステップ {step}"),
    "epoch": ("Epoch", "エポック"),
    "started": ("Started", "開始"),
    "resumed_at": ("Resumed at step {step}", "ステップ {step} から再開"),
    # the curves
    "curves": ("Curves", "曲線"),
    "no_curves": ("Nothing has been logged as a number yet.", "数値はまだ記録されていません。"),
    "left_out": (
        "{count} more names were logged than are drawn here; metrics.jsonl has them all.",
        "ほかに {count} 個の名前が記録されています。すべての値は metrics.jsonl にあります。",
    ),
    "loss": ("Loss", "損失"),
    "learning_rate": ("Learning rate", "学習率"),
    "grad_norm": ("Gradient norm", "勾配ノルム"),
    "samples_per_second": ("Samples per second", "1 秒あたりのサンプル数"),
    "tokens_per_second": ("Tokens per second", "1 秒あたりのトークン数"),
    "mfu": ("Model FLOPs utilisation", "モデル FLOPs 利用率（MFU）"),
    "mfu_percent": ("Model FLOPs utilisation, %", "モデル FLOPs 利用率（MFU、%）"),
    "group_loss": ("Loss", "損失"),
    "group_evaluation": ("Evaluation", "評価"),
    "group_optimization": ("Optimization", "最適化"),
    "group_metrics": ("Your metrics", "独自の指標"),
    "group_speed": ("Speed", "速度"),
    "step": ("Step", "ステップ"),
    "time": ("Time", "時間"),
    "axis": ("Horizontal axis", "横軸"),
    "smoothing": ("Smoothing", "平滑化"),
    "log_scale": ("Log scale", "対数目盛"),
    "reset_zoom": ("Reset zoom", "拡大を解除"),
    "find_curve": ("Find a curve", "曲線を検索"),
    "zoom_hint": (
        "Drag over a range to zoom, double-click to reset. Two fingers zoom too, and the wheel with Ctrl or after a "
        "click.",
        "ドラッグした範囲を拡大し、ダブルクリックで元に戻ります。2 本指や、Ctrl を押しながら（またはクリックした後）の"
        "ホイールでも拡大できます。",
    ),
    "keys_hint": (
        "Arrow keys move the cursor, + and - zoom, 0 resets.",
        "矢印キーでカーソルを移動、+ と - で拡大・縮小、0 で元に戻ります。",
    ),
    "not_finite": ("not a finite number", "有限の値ではありません"),
    "not_finite_since": ("not finite since step {step}", "ステップ {step} から有限の値ではありません"),
    "not_finite_at": ("not finite at some steps from {first} to {last}", "ステップ {first}～{last} に有限でない値"),
    "no_script": (
        "Scripts are off: this is the loss as a fixed picture.",
        "スクリプトが無効のため、損失を静止画で表示しています。",
    ),
    "chart_label": ("{name}: {count} values, last {last}", "{name}：{count} 個の値、最終値 {last}"),
    # the account
    "account": ("Where the time went", "時間の内訳"),
    "no_account": ("This run has not kept an account of its time.", "この学習には時間の内訳の記録がありません。"),
    "phase": ("Phase", "処理"),
    "share": ("Share", "割合"),
    "data": ("Waiting for data", "データ待ち"),
    "transfer": ("Transfer to the device", "デバイスへの転送"),
    "forward": ("Forward", "順伝播"),
    "backward": ("Backward", "逆伝播"),
    "optimizer": ("Clipping and optimizer", "クリッピングとオプティマイザー"),
    "callbacks": ("Callbacks and logging", "コールバックとログ"),
    "evaluation": ("Evaluation", "評価"),
    "checkpoint": ("Checkpoints", "チェックポイント"),
    "other": ("Other", "その他"),
    "bottleneck": (
        "Bottleneck: {phase} took {share} of the time.",
        "ボトルネック：「{phase}」が時間の {share} を占めています。",
    ),
    "no_bottleneck": (
        "No bottleneck: most of the time went into computing the model.",
        "ボトルネックはありません。時間の大半はモデルの計算に使われています。",
    ),
    "remedy_data": (
        "The device waits for batches. Raise dataloader_num_workers (and keep dataloader_persistent_workers on), "
        "tokenize and resize once before the training instead of in the data set, or keep the data on a faster disk.",
        "バッチの準備が間に合っていません。dataloader_num_workers を増やす（dataloader_persistent_workers も有効に）、"
        "トークン化やリサイズを学習前に済ませておく、データを高速なディスクに置く、といった方法があります。",
    ),
    "remedy_transfer": (
        "Copying batches to the device takes long. Keep dataloader_pin_memory=True with dataloader_num_workers above "
        "0, and leave columns that the model does not need out of the batch.",
        "バッチのコピーに時間がかかっています。dataloader_pin_memory=True のまま dataloader_num_workers を 1 以上にし、"
        "モデルが使わない列をバッチから除いてください。",
    ),
    "remedy_optimizer": (
        'The update costs much beside the model. Use a fused optimizer (optim="adamw_torch_fused"), or larger batches '
        "or gradient_accumulation_steps, so that there are fewer updates.",
        'モデルの計算に比べて更新の負担が大きくなっています。fused 版のオプティマイザー（optim="adamw_torch_fused"）を'
        "使うか、バッチサイズや gradient_accumulation_steps を大きくして更新の回数を減らしてください。",
    ),
    "remedy_callbacks": (
        "Callbacks and logging cost much. Raise logging_steps, and look for a callback that works at every step.",
        "コールバックとログの負担が大きくなっています。logging_steps を大きくし、毎ステップ処理を行っている"
        "コールバックがないか確認してください。",
    ),
    "remedy_evaluation": (
        "Evaluate less often (eval_steps), in larger batches (per_device_eval_batch_size), on a part of the data, or "
        "with metrics by name, which do not gather all outputs.",
        "評価の回数を減らす（eval_steps）、バッチを大きくする（per_device_eval_batch_size）、評価データの一部だけを使う、"
        "全出力を集めずに済む名前指定の指標を使う、といった方法があります。",
    ),
    "remedy_checkpoint": (
        "Save less often (save_steps), keep async_save on, leave the optimizer out where nobody will resume "
        "(save_only_model), or write to a faster disk.",
        "保存の回数を減らす（save_steps）、async_save を有効にしておく、再開しないのであればオプティマイザーを"
        "保存しない（save_only_model）、高速なディスクに書き込む、といった方法があります。",
    ),
    "remedy_other": (
        'Much of the time is in none of the measured phases. profile_steps="10:14" writes a trace that shows where.',
        '計測対象の処理以外に時間がかかっています。profile_steps="10:14" を指定すると、内訳のわかるトレースが'
        "書き出されます。",
    ),
    "traces": ("Profiler traces", "プロファイルの記録"),
    "traces_note": (
        "profile_steps left {files} in the folder of the run: for Perfetto or chrome://tracing.",
        "profile_steps による記録があります（{files}）。Perfetto または chrome://tracing で開けます。",
    ),
    "time_per_step": ("Time per step", "1 ステップの時間"),
    # the rest of the page
    "checkpoints": ("Checkpoints", "チェックポイント"),
    "no_checkpoints": ("There is no checkpoint in the folder.", "フォルダーにチェックポイントはありません。"),
    "best_checkpoint": ("best", "最良"),
    "final_metrics": ("Metrics: best and last", "指標（最良値と最終値）"),
    "lower_better": ("lowest", "最小"),
    "higher_better": ("highest", "最大"),
    "arguments": ("Arguments", "引数"),
    "arguments_note": ("Those that differ from the defaults.", "既定値から変更したものだけを示します。"),
    "arguments_differ": ("Arguments that differ", "異なる引数"),
    "arguments_alike": ("All arguments are alike.", "引数はすべて同じです。"),
    "no_arguments": ("All arguments have their defaults.", "引数はすべて既定値です。"),
    "default": ("default", "既定値"),
    "environment": ("Environment", "環境"),
    "model": ("Model", "モデル"),
    "model_class": ("Class", "クラス"),
    "parameters": ("Parameters", "パラメーター数"),
    "trainable": ("Trainable", "うち学習対象"),
    "examples": ("Training examples", "学習データの件数"),
    "batches_per_epoch": ("Batches per epoch", "1 エポックのバッチ数"),
    "device": ("Device", "デバイス"),
    "processes": ("Processes", "プロセス数"),
    "platform": ("Platform", "プラットフォーム"),
    "threads": ("CPU threads", "CPU スレッド数"),
    "script": ("Script", "スクリプト"),
    "warnings": ("Warnings", "警告"),
    "no_warnings": ("No warnings.", "警告はありませんでした。"),
    "warnings_count": ("Warnings: {count}", "警告 {count} 件"),
    "times_at_steps": ("{count} times, steps {first} to {last}", "{count} 回（ステップ {first}～{last}）"),
    "more_warnings": ("{count} more", "ほか {count} 件"),
    "name": ("Name", "名前"),
    "theme": ("Light or dark", "配色の切り替え"),
    "theme_light": ("Light", "ライト"),
    "theme_dark": ("Dark", "ダーク"),
    "theme_system": ("System", "自動"),
    "skip": ("Skip to the curves", "曲線へ移動"),
    "made_by": ("Made by kunren {version} on {time}", "{time} に kunren {version} で作成"),
    # live
    "updated": ("updated {seconds} s ago", "{seconds} 秒前に更新"),
    "updated_now": ("updated just now", "更新されたばかりです"),
    "server_gone": (
        "The server has gone: what is shown is {seconds} s old. Start kunren watch again to go on.",
        "サーバーに接続できません（表示は {seconds} 秒前のものです）。続けるには kunren watch を再度実行してください。",
    ),
    # the command line
    "path_missing": ("{path} does not exist.", "{path} が見つかりません。"),
    "path_is_file": (
        "{path} is a file: name the folder of a run, its output_dir.",
        "{path} はファイルです。学習のフォルダー（output_dir）を指定してください。",
    ),
    "path_forbidden": ("{path} cannot be read: permission denied.", "{path} を読む権限がありません。"),
    "no_run": (
        "{path} holds no metrics.jsonl, and no folder in it does: a run writes it into its output_dir with its first "
        "log.",
        "{path} にもその中のフォルダーにも metrics.jsonl がありません。学習は、最初のログのときに output_dir へ"
        "これを書き出します。",
    ),
    "runs_nearby": (" There are runs in {folders}.", "学習は {folders} にあります。"),
    "add_follow": (" To wait for it, add --follow.", "待つには --follow を付けてください。"),
    "page_options": (
        "--open and --port are for the page: add --web.",
        "--open と --port はページ用です。--web を付けてください。",
    ),
    "bad_port": (
        "--port {port}: ports go from 0 (any that is free) to 65535.",
        "--port {port}：ポートは 0（空いているもの）から 65535 までです。",
    ),
    "to_without_sync": (
        "--to belongs to `kunren report sync DIR --to NAME`.",
        "--to は `kunren report sync DIR --to NAME` のためのものです。",
    ),
    "sync_usage": (
        "say what to send, and where: `kunren report sync DIR --to NAME[,NAME]`.",
        "送るものと送り先を `kunren report sync DIR --to NAME[,NAME]` のように指定してください。",
    ),
    "sent": ("{count} log lines sent", "ログ {count} 行を送信"),
    "sent_nothing": ("nothing new to send", "新しく送るものはありません"),
    "sent_to": (" of run {run}", "（ラン {run}）"),
    "sent_nowhere": ("has logged nothing: there is nothing to send", "記録がないため、送るものはありません"),
    "sent_again": (
        "{tracker} was in report_to: where it followed the training, it has this run twice now.",
        "{tracker} は report_to に含まれていました。学習中にも記録されていれば、同じ学習が 2 つになっています。",
    ),
    "cannot_write": (
        "{path} cannot be written ({reason}): --out FILE writes it elsewhere.",
        "{path} に書き込めません（{reason}）。--out FILE で別の場所を指定できます。",
    ),
    "no_out_folder": ("--out {path}: there is no folder {folder}.", "--out {path}：フォルダー {folder} がありません。"),
    "no_matplotlib": (
        "{name} is not written: it needs matplotlib (pip install matplotlib).",
        "{name} は書き出していません。matplotlib が必要です（pip install matplotlib）。",
    ),
    "no_curve_to_draw": (
        "{name} is not written: nothing has been logged as a number.",
        "{name} は書き出していません。数値がまだ記録されていません。",
    ),
    "ctrl_c": ("Ctrl-C ends it.", "Ctrl-C で終了します。"),
    "port_taken": ("(port {port} is taken)", "（ポート {port} は使用中）"),
    # units
    "days_hours": ("{days} d {hours} h", "{days} 日 {hours} 時間"),
    "hours_minutes": ("{hours} h {minutes} min", "{hours} 時間 {minutes} 分"),
    "minutes_seconds": ("{minutes} min {seconds} s", "{minutes} 分 {seconds} 秒"),
    "short_seconds": ("{seconds} s", "{seconds} 秒"),
    "milliseconds": ("{milliseconds} ms", "{milliseconds} ミリ秒"),
}


def words(language: str) -> Mapping[str, str]:
    """The texts by key; a ValueError for a language that there is none in."""
    if language not in LANGUAGES:
        raise ValueError(f"language={language!r}: choose one of {', '.join(LANGUAGES)}.")
    return _BY_LANGUAGE[language]


def duration(seconds: float, text: Mapping[str, str]) -> str:
    """Seconds as a person says them, in two units at most."""
    if seconds < 1:
        return text["milliseconds"].format(milliseconds=f"{max(0.0, seconds) * 1000:.3g}")
    if seconds < 60:
        return text["short_seconds"].format(seconds=f"{seconds:.3g}" if seconds < 59.95 else "60")
    minutes, rest = divmod(round(min(seconds, 1e12)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours == 0:
        return text["minutes_seconds"].format(minutes=minutes, seconds=rest)
    if hours < 48:
        return text["hours_minutes"].format(hours=hours, minutes=minutes)
    return text["days_hours"].format(days=hours // 24, hours=hours % 24)


_BY_LANGUAGE: dict[str, Mapping[str, str]] = {
    language: MappingProxyType({key: texts[index] for key, texts in _TEXTS.items()})
    for index, language in enumerate(LANGUAGES)
}
