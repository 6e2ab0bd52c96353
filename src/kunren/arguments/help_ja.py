"""The help texts of all arguments in Japanese, in the order of the groups; `help_texts` hands them out."""

from __future__ import annotations

TEXTS = {
    # 出力先
    "output_dir": (
        "チェックポイント、ログ、最終状態を書き出すフォルダー。省略すると 'trainer_output'。`~` は展開される。"
    ),
    # 学習の長さとバッチサイズ
    "per_device_train_batch_size": "1 デバイスあたりのマイクロバッチのサンプル数。",
    "num_train_epochs": "エポック数（学習データを何周するか）。0.5 なら半周。",
    "max_steps": (
        "オプティマイザーのステップ数の合計。0 より大きければ num_train_epochs より優先する。-1 か 0 なら未指定。"
    ),
    "gradient_accumulation_steps": (
        "勾配累積のステップ数。この数のマイクロバッチの勾配を合わせて 1 回更新する。1 なら累積しない。"
    ),
    "auto_find_batch_size": (
        "メモリーが足りないとき、バッチを小さく分けて計算する。kunren は常にそうするので、指定しても変わらない。"
    ),
    # オプティマイザー・学習率・スケジュール
    "learning_rate": "学習率の最大値。ウォームアップが終わった時点でこの値になる。",
    "lr_scheduler_type": (
        "学習率のスケジュール。ウォームアップ後に学習率をどう変えるか。"
        "'linear' は最後のステップに向けて 0 まで直線的に下げる。"
    ),
    "lr_scheduler_kwargs": (
        '学習率スケジュールの追加の設定。辞書か JSON 文字列で指定する（例: {"num_cycles": 2}）。None なら既定値。'
    ),
    "warmup_steps": (
        "学習率を 0 から直線的に上げていくウォームアップのステップ数。1 未満なら学習全体に対する割合、"
        "0 ならウォームアップなし。"
    ),
    "optim": "オプティマイザー。transformers での名前か、pytorch-optimizer パッケージでの名前で指定する。",
    "optim_args": "オプティマイザーの追加の設定。'name=value,name=value' の形で指定する。None なら既定値。",
    "weight_decay": (
        "重み減衰の係数（勾配から切り離した decoupled 型）。バイアスと正規化層を除くすべての重みにかかる。"
        "0 なら減衰なし。"
    ),
    "adam_beta1": "AdamW の beta1。勾配の移動平均（1 次モーメント）の減衰率。",
    "adam_beta2": "AdamW の beta2。勾配の 2 乗の移動平均（2 次モーメント）の減衰率。",
    "adam_epsilon": "AdamW の epsilon。0 での除算を防ぐために分母へ足す値。",
    "optim_target_modules": (
        "GaLore と APOLLO を適用するモジュール。名前のリストか正規表現で指定する。'all-linear' なら全結合層すべて。"
    ),
    "parameter_groups": (
        "パラメーターごとの学習率と重み減衰。{pattern, learning_rate, weight_decay} のリストで、JSON 文字列でもよい。"
        "名前に正規表現 pattern が見つかったパラメーターに、その値を使う。"
        "複数に当てはまるときは先に書いたものを使う。"
    ),
    "layer_decay": (
        "層ごとの学習率。1 つ上の層の学習率にこの値を掛けたものになり、ヘッドが最も大きい。0.65～0.95 が一般的。"
        "None なら全層で同じ学習率。"
    ),
    "max_grad_norm": (
        "勾配クリッピングの上限。勾配ノルムがこれを超えたら、この値まで縮める。None か 0 ならクリッピングしない。"
    ),
    "nonfinite": (
        "勾配が NaN や無限大になったときの動作。'warn' は次のログで警告し、'skip' はその更新を飛ばし、"
        "'rollback' は最後に正常だった重みに戻し、'raise' はエラーにする。"
    ),
    "nonfinite_limit": "'skip' と 'rollback' のとき、勾配が有限でない更新がこの回数続いたら学習を打ち切る。",
    "label_smoothing_factor": (
        "ラベル平滑化の強さ。正解ラベルの確率のうち、全クラスに分け与える割合。1 未満で、0 なら使わない。"
    ),
    "neftune_noise_alpha": "NEFTune が埋め込みに加えるノイズの大きさ。論文では 5～15。None なら使わない。",
    # 数値精度
    "bf16": "混合精度学習。安全な演算を bfloat16 で計算する（autocast）。重みの型は変わらない。",
    "fp16": "混合精度学習。安全な演算を float16 で計算し、勾配をスケーリングする。",
    "bf16_full_eval": "評価時にモデル全体を bfloat16 に変換する。メモリー消費は減るが、評価指標の値がわずかに変わる。",
    "fp16_full_eval": "評価時にモデル全体を float16 に変換する。メモリー消費は減るが、評価指標の値がわずかに変わる。",
    "tf32": "NVIDIA GPU で行列積に TF32 の使用を許可する。None なら torch の設定のまま。",
    # モデルの実行
    "activation_checkpointing": (
        "逆伝播で活性値を計算し直す（勾配チェックポイント）。メモリー消費は減るが、時間がかかる。"
    ),
    "activation_checkpointing_kwargs": (
        'torch.utils.checkpoint に渡す設定。辞書か JSON 文字列で指定する（例: {"use_reentrant": false}）。'
    ),
    "gradient_checkpointing": "activation_checkpointing の別名。",
    "gradient_checkpointing_kwargs": "activation_checkpointing_kwargs の別名。",
    "torch_compile": "モデルを torch.compile でコンパイルする。最初の数ステップは遅いが、その後は速くなる。",
    "torch_compile_backend": "torch.compile のバックエンド。省略すると 'inductor'。指定するとコンパイルが有効になる。",
    "torch_compile_mode": (
        "torch.compile のモード（'reduce-overhead'、'max-autotune' など）。指定するとコンパイルが有効になる。"
    ),
    "chunked_loss": (
        "語彙全体にわたる損失を、トークンをいくつかずつに区切って計算する。'on'（使う）、'off'（使わない）、"
        "'auto'（効果があるときだけ使う）。"
    ),
    "use_liger_kernel": "liger-kernel パッケージのカーネルを使う。対応するモデルでは、速くなりメモリー消費も減る。",
    "liger_kernel_config": (
        'Liger のどのカーネルを使うか。辞書か JSON 文字列で指定する（例: {"rope": true}）。None なら Liger に任せる。'
    ),
    "use_cache": "学習中もモデルに KV キャッシュを保持させる。メモリーを使うだけで、学習に利点はない。",
    "torch_empty_cache_steps": "何ステップごとに、デバイスのキャッシュ済みメモリーを解放するか。None なら解放しない。",
    # 再現性
    "full_determinism": "決定的なカーネルだけを使い、ない場合はエラーにする。その分遅くなる。",
    "seed": "乱数シード。ドロップアウト、model_init が作る重み、data_seed を省略した場合はデータの順序にも使う。",
    "data_seed": "データの順序の乱数シード。省略すると `seed` と同じ。",
    "debug": (
        "有効にするデバッグ機能。空白で区切って指定する。underflow_overflow（最初のオーバーフローで停止する）、"
        "tpu_metrics_debug。"
    ),
    "skip_memory_metrics": "メモリー使用量を報告しない（測定には時間がかかる）。",
    # スクリプト用のスイッチ
    "do_train": "スクリプト用: 学習するかどうか。Trainer は参照しない。",
    "do_eval": "スクリプト用: 評価するかどうか。eval_strategy が 'no' でなければ自動で有効になる。",
    "do_predict": "スクリプト用: テストデータで予測するかどうか。Trainer は参照しない。",
    # データの読み込み
    "dataloader_drop_last": "最後のバッチが他より小さければ使わない。",
    "dataloader_num_workers": "データを読み込むワーカープロセスの数。0 ならメインプロセスで読み込む。",
    "dataloader_pin_memory": "デバイスへの転送が速くなる場合、ピン留めメモリーに読み込む。",
    "dataloader_persistent_workers": (
        "エポックをまたいでワーカーを維持する。エポックの始まりが速くなるが、メモリーは占有したままになる。"
    ),
    "dataloader_prefetch_factor": "各ワーカーが先読みするバッチ数。None なら torch の既定値の 2。",
    "dataloader_multiprocessing_context": (
        "ワーカーの起動方法。'fork'、'spawn'、'forkserver' のいずれか。None ならシステムの既定。"
    ),
    "dataloader_in_order": "どのワーカーが先に終わっても、バッチを順番どおりに返す。",
    "remove_unused_columns": "モデルの forward が受け取らない列を取り除く。",
    "label_names": "ラベルとして扱う入力の名前。省略するとモデルから判断する。",
    "train_sampling_strategy": (
        "学習データの順序。'random'（ランダム）、'sequential'（元の順）、"
        "'group_by_length'（長さの近いものをまとめる）、"
        "'batch_rebalance'（1 ステップ内の長さを各バッチに均等に配分する）。"
    ),
    "length_column_name": "長さでバッチを作るときに、長さが入っている列の名前。なければ入力から数える。",
    "batching": (
        "サンプルからバッチを作る方法。'padded'（パディング）、'grouped'（長さの近いものをまとめる）、"
        "'token_budget'（トークン数の上限内でパディング）、'packed'（パディングなしで詰める）。"
    ),
    "token_budget": (
        "batching='token_budget' のとき、1 デバイスの 1 バッチに入れるトークン数の上限。パディングも含む。"
        "per_device_train_batch_size は使わない。"
    ),
    "bad_sample_policy": "読み込めないサンプルの扱い。'raise' ならエラーにし、'skip' なら飛ばす。",
    "bad_sample_limit": (
        "bad_sample_policy='skip' のとき、読み込めないサンプルの割合がこの値に達したら学習を打ち切る。最大 1。"
    ),
    "mixture_weights": (
        "学習データが複数あるとき、それぞれから取り出す頻度。データ名をキーとする辞書か JSON 文字列で指定する。"
        "None ならデータの大きさに比例。"
    ),
    # デバイスと分散学習
    "use_cpu": "GPU があっても CPU を使う。",
    "average_tokens_across_devices": "損失を全デバイスの合計トークン数で割り、どのトークンも等しく扱う。",
    "accelerator_config": "Accelerate の設定。辞書、JSON 文字列、JSON ファイルのパスのいずれか。",
    "parallelism_config": "Accelerate の ParallelismConfig か、その大きさの辞書。テンソル並列や、グループごとの FSDP。",
    "ddp_find_unused_parameters": (
        "DDP: 勾配が計算されなかったパラメーターを探す。時間はかかるが、"
        "ステップによって使わないパラメーターがあるときに必要。"
    ),
    "ddp_bucket_cap_mb": "DDP: 勾配バケットの大きさ（メガバイト）。None なら torch の既定値。",
    "ddp_broadcast_buffers": "DDP: 順伝播の前に、バッファーを全プロセスへ送る。",
    "ddp_static_graph": "DDP: 計算グラフが毎ステップ同じであることを前提にする。",
    "ddp_backend": "torch.distributed のバックエンド（'nccl'、'gloo' など）。省略するとデバイスに合ったもの。",
    "ddp_timeout": "プロセスが他のプロセスを待つ時間の上限（秒）。",
    "watchdog_minutes": (
        "進捗のないままこの時間（分）が過ぎたら、全スレッドの実行位置を書き出す。学習は打ち切らない（kunren 独自）。"
    ),
    "fsdp": "True で FSDP を有効にする。'full_shard auto_wrap' のような古い書き方も使える。",
    "fsdp_config": "FSDP の設定。辞書、JSON 文字列、JSON ファイルのパスのいずれか。",
    "deepspeed": "DeepSpeed の設定。辞書、JSON 文字列、JSON ファイルのパスのいずれか。",
    "local_rank": "古いランチャー向けに受け付けるだけの引数。プロセス番号はランチャーの環境変数から分かる。",
    # ログとトラッキング
    "logging_strategy": "ログを記録するタイミング。'no'（しない）、'steps'（ステップごと）、'epoch'（エポックごと）。",
    "logging_steps": "何ステップごとにログを記録するか。1 未満なら学習全体に対する割合。",
    "logging_first_step": "最初のステップのログも記録する。",
    "log_on_each_node": "マシンごとに 1 つのプロセスがログを出力する。無効なら、全体で 1 つのプロセスだけ。",
    "logging_nan_inf_filter": (
        "ログの損失のうち nan と inf を、残りの損失の平均に置き換える。transformers では指定しなくても置き換わる。"
    ),
    "include_num_input_tokens_seen": (
        "入力したトークンを数える。'all'（すべて）、'non_padding'（パディングを除く）、'no'（数えない）。"
        "True は 'all'。"
    ),
    "log_level": "メインプロセスのログレベル。'passive' なら変更しない。",
    "log_level_replica": "メイン以外のプロセスのログレベル。同じ警告はメインだけが出す。'passive' なら変更しない。",
    "run_report": "学習が終わると（途中で終わった場合も）、出力フォルダーに report.html と curves.png を書き出す。",
    "peak_tflops": (
        "デバイス 1 台の理論ピーク性能（学習時の精度での TFLOP/s）。FLOPs 利用率の分母になる。"
        "None ならデバイス名から調べる。"
    ),
    "profile_steps": (
        "torch プロファイラーのトレースを書き出すステップ。1 から数え、最初と最後を '10:14' のように指定する。"
        "'10' なら 1 ステップだけ、None なら書き出さない。出力フォルダーの profile/ に置かれる。"
    ),
    "disable_tqdm": "プログレスバーを使わず、テキストの行で表示する。None は False と同じ。",
    "report_to": (
        "記録を送るトラッカー。名前、名前のリスト、'all'（インストール済みのものすべて）、'none'（なし）のいずれか。"
    ),
    "run_name": "トラッカーに表示する、この学習の名前。None ならトラッカーが決める。",
    "project": "この学習が属するプロジェクト名。プロジェクトのあるトラッカーで使う。",
    "trackio_space_id": "Trackio: 学習の様子を表示する Hub の Space。None ならこのマシンの中だけに記録する。",
    "trackio_bucket_id": "Trackio: Space のデータを保存するバケット。None なら Trackio が決める。",
    "trackio_static_space_id": "Trackio: 学習後に公開する静的な Space。公開しないなら False。",
    # 評価
    "eval_strategy": "評価するタイミング。'no'（しない）、'steps'（ステップごと）、'epoch'（エポックごと）。",
    "eval_steps": "何ステップごとに評価するか。1 未満なら学習全体に対する割合。省略すると logging_steps と同じ。",
    "eval_delay": (
        "評価を始めるまでに待つステップ数またはエポック数（単位は eval_strategy に従う）。0 なら最初から評価する。"
    ),
    "per_device_eval_batch_size": "1 デバイスあたりの評価バッチのサンプル数。",
    "prediction_loss_only": "損失だけを計算する。予測は集めず、予測から求める評価指標も計算しない。",
    "eval_on_start": "最初のステップの前に 1 回評価する。",
    "eval_do_concat_batches": "全バッチの出力を連結する。無効なら、バッチごとのリストのままにする。",
    "eval_use_gather_object": "入れ子になった出力を、Python オブジェクトとしてプロセス間で集める。",
    "eval_accumulation_steps": "何バッチごとに予測を CPU へ移すか。None なら最後にまとめて移す。",
    "include_for_metrics": "予測のほかに compute_metrics へ渡すもの。'inputs'（入力）、'loss'（損失）。",
    "batch_eval_metrics": (
        "バッチごとに compute_metrics を呼ぶ（最後のバッチでは compute_result=True）。出力は保持しない。"
    ),
    "metrics": (
        "名前で指定する評価指標（'accuracy'、'f1' など）。"
        "ロジットをためずにバッチごとに計算する（torchmetrics が必要）。"
    ),
    # チェックポイントと再開
    "save_only_model": "重みだけを保存する。サイズは小さくなるが、そのチェックポイントからは再開できない。",
    "save_strategy": (
        "保存するタイミング。'no'（しない）、'steps'（ステップごと）、'epoch'（エポックごと）、"
        "'best'（評価指標が最良を更新したとき）。"
    ),
    "save_steps": "何ステップごとに保存するか。1 未満なら学習全体に対する割合。",
    "save_on_each_node": "最初のマシンだけでなく、すべてのマシンで保存する。",
    "async_save": "ホストメモリーに取ったコピーから、バックグラウンドでチェックポイントを書き出す（kunren 独自）。",
    "save_minutes": (
        "前回の保存からこの時間（分）が過ぎたときにも保存する。None なら時間では保存しない（kunren 独自）。"
    ),
    "max_minutes": "この時間（分）が過ぎる前に、保存して終了する。None なら制限なし（kunren 独自）。",
    "save_total_limit": "残すチェックポイントの数。ベストのチェックポイントも含む。None ならすべて残す。",
    "save_best_limit": (
        "直近の save_total_limit 個（未指定なら最新の 1 つ）とは別に、評価が良い順にこの数だけ残す。"
        "None なら save_total_limit だけで決まる（kunren 独自）。"
    ),
    "enable_jit_checkpoint": (
        "ジョブスケジューラーの終了予告（SIGTERM）で保存する。kunren は、チェックポイントを保存する設定なら、"
        "指定しなくても保存する。"
    ),
    "ignore_data_skip": "再開したとき、データの続きからではなく先頭から始める。",
    "restore_callback_states_from_checkpoint": (
        "再開したとき、コールバックを保存時の状態に戻す。transformers では指定したときだけ戻る。"
    ),
    "resume_from_checkpoint": (
        "train() に何も渡さない場合に、再開元とするチェックポイント。パス、最新のものを使う True、または、"
        "あれば最新のもの、なければ最初から始める 'auto'（kunren のみ）を指定する。None なら最初から始める。"
    ),
    # ベストモデル
    "load_best_model_at_end": "学習の最後に、ベストのチェックポイントの重みを読み込む。",
    "metric_for_best_model": "ベストを決める評価指標。'eval_' は付けても付けなくてもよい。省略すると損失。",
    "greater_is_better": "評価指標が大きいほど良いかどうか。None なら、よく使われる指標は名前から判断する。",
    # Hugging Face Hub
    "push_to_hub": "保存するたびにモデルを Hub へアップロードする（hub_strategy に従う）。",
    "hub_token": "Hub のトークン。None ならログイン中のものを使う。",
    "hub_private_repo": "リポジトリを非公開にする。None ならアカウントの既定に従う。",
    "hub_model_id": "リポジトリの名前。'user/name' の形で指定する。省略すると output_dir から付ける。",
    "hub_strategy": (
        "アップロードする内容と時期。'end' は学習終了時にモデルを、'every_save' は保存のたびにもモデルを、"
        "'checkpoint' は加えて最新のチェックポイントも、'all_checkpoints' は加えてすべてのチェックポイントも送る。"
    ),
    "hub_always_push": ("すべての保存を順にアップロードする。False なら、順番待ちのものは新しい保存に置き換わる。"),
    "hub_revision": "アップロード先のブランチ。なければ作る。None なら main ブランチ。",
}
