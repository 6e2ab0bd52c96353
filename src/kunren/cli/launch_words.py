"""What `kunren launch` says of itself and of what it does, in English and Japanese."""

from __future__ import annotations

# Option -> what stands after it, and what it is for.
OPTIONS: dict[str, tuple[str, str, str]] = {
    "--processes": (
        "N|auto",
        "Processes on this machine. auto, the default: one for each GPU that is visible, one where there is none.",
        "このマシンのプロセス数。auto（既定）なら、見えている GPU ごとに 1 つ、なければ 1 つ。",
    ),
    "--cpu": ("", "Train on the CPU, GPUs or not.", "GPU があっても CPU で学習する。"),
    "--nodes": (
        "N",
        "Machines that train together; the command runs on each of them. The default is 1.",
        "一緒に学習するマシンの台数。コマンドは各マシンで実行する。既定は 1。",
    ),
    "--node-rank": (
        "K",
        "Which of the machines this is, from 0. Needed with --nodes.",
        "このマシンの番号（0 から）。--nodes を指定するときに必要。",
    ),
    "--rendezvous": (
        "HOST[:PORT]",
        "Where the machines meet: the address of number 0, and a port that is free there (29400).",
        "マシンが集合する場所。番号 0 のマシンのアドレスと、そこで空いているポート（29400）。",
    ),
    "--address": (
        "ADDRESS",
        "How the others reach this machine, where the way to HOST does not tell.",
        "他のマシンから見たこのマシンのアドレス。HOST への経路から分からないときに指定する。",
    ),
    "--run-id": (
        "NAME",
        "The same on all machines, another for each run that meets at the same HOST:PORT.",
        "実行の名前。全マシンで同じにし、同じ HOST:PORT を使う別の実行とは変える。",
    ),
    "--max-restarts": (
        "R",
        "When a process fails, start all of them again, so many times (0). "
        'With resume_from_checkpoint="auto" they go on from the newest checkpoint.',
        "プロセスが失敗したとき、すべてを起動し直す回数（0）。"
        'resume_from_checkpoint="auto" なら最新のチェックポイントから続ける。',
    ),
    "--log-dir": (
        "DIR",
        "Also write what each process prints into files there.",
        "各プロセスの出力を、このフォルダーのファイルにも書く。",
    ),
    "--module": (
        "",
        "SCRIPT is the name of a module, as in python -m; also -m.",
        "SCRIPT をモジュール名とする（-m）。",
    ),
    "--lang": (
        "LANGUAGE",
        "en or ja; otherwise what LC_ALL, LC_MESSAGES or LANG says.",
        "en または ja。省略すると LC_ALL、LC_MESSAGES、LANG に従う。",
    ),
    "--help": ("", "This text; also -h.", "このヘルプ（-h）。"),
}
# What torchrun and accelerate call the same.
ELSEWHERE = {
    "--nproc-per-node": "--processes",
    "--num-processes": "--processes",
    "--nnodes": "--nodes",
    "--num-machines": "--nodes",
    "--machine-rank": "--node-rank",
    "--rdzv-endpoint": "--rendezvous",
    "--master-addr": "--rendezvous",
    "--main-process-ip": "--rendezvous",
    "--local-addr": "--address",
    "--rdzv-id": "--run-id",
    "--multi-gpu": "--processes",
    "--use-cpu": "--cpu",
}
WORDS = {
    "en": {
        "usage": "usage: kunren launch [options] SCRIPT.py [arguments]\n"
        "       kunren launch [options] -m MODULE [arguments]\n"
        "       kunren launch [options] CONFIG [--name value ...]",
        "about": "Train with several processes: SCRIPT.py as it is, or what CONFIG describes, as `kunren train` would. "
        "Every visible GPU is used without a setting. SIGTERM and Ctrl-C are passed on: the run saves a checkpoint and "
        "ends.",
        "options": "options",
        "unknown": "There is no option {}.{} `kunren launch --help` shows all; what is for the script stands after it.",
        "nearest": " Did you mean '{}'?",
        "elsewhere": "{} is called {} here.",
        "value": "{0} needs a value: {0} {1}.",
        "no_value": "{} takes no value.",
        "number": "{} {}: give a whole number{}, of {} or more.",
        "or_auto": " or auto",
        "no_script": "Give a script or a configuration: kunren launch SCRIPT.py. `kunren launch --help` explains all.",
        "no_file": "{} does not exist.{}",
        "folder": "{} is a folder: give a script or a configuration in it, or -m PACKAGE.",
        "is_file": "{} is a file: leave -m out, or give the name of a module, such as package.train.",
        "no_python": "{} is neither a Python file nor a configuration (.yaml, .yml, .json): give one of these, or "
        "-m MODULE.",
        "no_module": "There is no module {}: -m takes a name such as package.train, found from this folder.",
        "no_rendezvous": "--nodes {0}: the machines have to know where they meet: --rendezvous HOST:PORT, the address "
        "of one of them, and --node-rank 0 there.",
        "no_rank": "--nodes {}: which of them is this? Give --node-rank, 0 on the machine of --rendezvous.",
        "rank": "--node-rank {}: of --nodes {}, the last is number {}.",
        "one_node": "{} is for several machines: give --nodes.",
        "port": "--rendezvous {}: give HOST or HOST:PORT, with a port between 1 and 65535.",
        "host": "--rendezvous {}: there is no host of that name.",
        "too_many": "--processes {0}, and {1} visible: two processes cannot share one. Give at most {2}, or --cpu to "
        "train on the CPU.",
        "chosen": "{}: {}{}.",
        "processes": ("{} process", "{} processes"),
        "devices": ("{} {} is", "{} {}s are"),
        "visible": "{} visible",
        "asked": "as asked; {} visible",
        "no_device": "no GPU is",
        "on_cpu": "to train on the CPU, as asked",
        "of_nodes": "; machine {} of {}, meeting at {}",
        "threads": "OMP_NUM_THREADS={}: {} cores, {} processes.",
        "interface": "GLOO_SOCKET_IFNAME={}: it has the address {}.",
        "no_auto": "A restart begins anew. With --resume_from_checkpoint auto it goes on from the newest checkpoint.",
        "on_later": "`{}` goes on from there.",
        "passed_on": "{} was passed on to {} processes. A third ends them at once.",
        "failed": "process {} of {} failed first, with exit status {}",
        "killed": "process {} of {} was the first to end, killed by {}.",
        "out_of_memory": " The system does that when its memory is used up.",
        "early": "process {} of {} has ended, with exit status 0, and others go on. If they wait for it, they wait in "
        "vain: all processes have to go through the whole script.",
        "again": "All are started again ({} of {}).",
        "not_met": "At {}, {} machines did not meet: {}",
        "closed": "At {}, the {} machines had met already, and one has ended: start all of them again. ({})",
    },
    "ja": {
        "usage": "使い方: kunren launch [オプション] SCRIPT.py [引数]\n"
        "        kunren launch [オプション] -m MODULE [引数]\n"
        "        kunren launch [オプション] CONFIG [--名前 値 ...]",
        "about": "複数のプロセスで学習する。SCRIPT.py をそのまま、または CONFIG のとおりに（`kunren train` と同じ）。"
        "設定なしで、見えているすべての GPU を使う。SIGTERM と Ctrl-C は各プロセスに伝わり、"
        "チェックポイントを保存して終わる。",
        "options": "オプション",
        "unknown": "オプション {} はない。{}一覧は `kunren launch --help`。スクリプトへの引数はスクリプトの後に書く。",
        "nearest": "'{}' のことか。",
        "elsewhere": "{} は、ここでは {} という名前。",
        "value": "{0} には値が必要: {0} {1}",
        "no_value": "{} に値は付けない。",
        "number": "{} {}: {3} 以上の整数{2}を指定する。",
        "or_auto": "または auto ",
        "no_script": "スクリプトか設定ファイルを指定する: kunren launch SCRIPT.py。説明は `kunren launch --help`。",
        "no_file": "{} がない。{}",
        "folder": "{} はフォルダー。中のスクリプトか設定ファイル、または -m PACKAGE を指定する。",
        "is_file": "{} はファイル。-m を外すか、package.train のようなモジュール名を指定する。",
        "no_python": "{} は Python のファイルでも設定ファイル（.yaml、.yml、.json）でもない。"
        "どちらか、または -m MODULE を指定する。",
        "no_module": "モジュール {} がない。-m には、このフォルダーから見つかる package.train のような名前を指定する。",
        "no_rendezvous": "--nodes {0}: マシンが集合する場所が必要。1 台のアドレスを --rendezvous HOST:PORT に指定し、"
        "そのマシンを --node-rank 0 とする。",
        "no_rank": "--nodes {}: このマシンの番号を --node-rank に指定する。--rendezvous のマシンが 0。",
        "rank": "--node-rank {}: --nodes {} の最後の番号は {}。",
        "one_node": "{} は複数のマシンのためのもの。--nodes を指定する。",
        "port": "--rendezvous {}: HOST または HOST:PORT（ポートは 1 から 65535）を指定する。",
        "host": "--rendezvous {}: その名前のホストはない。",
        "too_many": "--processes {0} に対し、見えている {1}。2 つのプロセスで 1 つを共有することはできない。"
        "{2} までにするか、CPU で学習するなら --cpu を指定する。",
        "chosen": "{}: {}{}。",
        "processes": ("{} プロセス", "{} プロセス"),
        "devices": ("{1} が {0} 個", "{1} が {0} 個"),
        "visible": "{}見えている",
        "asked": "指定のとおり（{}見えている）",
        "no_device": "GPU はない。",
        "on_cpu": "指定により CPU で学習",
        "of_nodes": "。{1} 台中の番号 {0}、{2} に集合",
        "threads": "OMP_NUM_THREADS={}: {} コアに {} プロセス。",
        "interface": "GLOO_SOCKET_IFNAME={}: アドレス {} をもつ。",
        "no_auto": "再起動すると最初から始まる。"
        "--resume_from_checkpoint auto を指定すると、最新のチェックポイントから続ける。",
        "on_later": "`{}` で続きから再開できる。",
        "passed_on": "{} を {} 個のプロセスに伝えた。3 回目で直ちに終える。",
        "failed": "{1} プロセス中、プロセス {0} が最初に失敗した（終了ステータス {2}）",
        "killed": "{1} プロセス中、プロセス {0} が {2} により最初に終わった。",
        "out_of_memory": "メモリー不足のときにシステムがそうする。",
        "early": "{1} プロセス中、プロセス {0} が終了ステータス 0 で終わり、他は続いている。"
        "それを待っているなら、いつまでも終わらない。全プロセスがスクリプトを最後まで実行する必要がある。",
        "again": "すべてを起動し直す（{} / {}）。",
        "not_met": "{} に {} 台のマシンが集合しなかった: {}",
        "closed": "{} に {} 台のマシンがすでに集合し、1 台が終わっている。すべてを起動し直す。（{}）",
    },
}
