"""Takes IDs until its input ends, and writes each run of them; see clients/conformance."""

import json
import sys
import threading
import time

from march_id import Client, Kind, MarchError


def main() -> None:
    options = json.loads(sys.argv[1])
    lock, stop = threading.Lock(), threading.Event()

    def say(*words: object) -> None:
        with lock:
            print(*words, flush=True)

    ids = Client(options["addresses"], fallback=options["fallback"], token_file=options["tokenFile"], ca=options["ca"],
                 min_step=options["minStep"], max_step=options["minStep"])
    text = None
    while text is None:  # a busy machine may take longer than the limit of a call to start all
        try:
            for name in options["tags"]:
                ids.tag(name).warm()
            text = ids.tag(options["text"]).next_text()
        except MarchError as error:
            if error.kind is not Kind.UNAVAILABLE:
                raise
            time.sleep(0.1)
    say("text", text.text, text.id, ids.tag(options["text"]).parse_text(text.text))
    try:
        ids.next("no-such-tag")
    except MarchError as error:
        say("unknown", error.kind.value)

    def take(name: str, n: int) -> None:
        began = time.time_ns() // 1_000_000
        try:
            runs = [range(one, one + 1) for one in [ids.next(name)]] if n == 1 else ids.tag(name).next_n(n)
        except MarchError as error:
            return say("error", name, error.kind.value, error)
        for run in runs:
            say("id", name, run.start, len(run), run.step, began)

    def load(name: str, n: int) -> None:
        while not stop.wait(options["pause"] / 1000):
            take(name, n)

    threads = [threading.Thread(target=load, args=(name, n)) for name in options["tags"] for n in (1, 5)]
    for thread in threads:
        thread.start()
    first = ids.tag(options["tags"][0])
    for _ in sys.stdin:  # each line has it hold half of a lease, and so ask a room for more
        n = first.held - options["minStep"] // 2
        if n > 1:
            take(first.name, n)
    stop.set()
    for thread in threads:
        thread.join()
    ids.close()
    try:
        ids.next(options["tags"][0])
    except MarchError as error:
        say("closed", error.kind.value if error.kind is Kind.CLOSED else error)


main()
