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
                 min_step=options["minStep"])
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

    def load(name: str, step: int) -> None:
        while not stop.wait(0.005):
            began = time.time_ns() // 1_000_000
            try:
                runs = [range(n, n + 1) for n in [ids.next(name)]] if step else ids.tag(name).next_n(5)
            except MarchError as error:
                say("error", name, error.kind.value, error)
                continue
            for run in runs:
                say("id", name, run.start, len(run), run.step, began)

    threads = [threading.Thread(target=load, args=(name, k)) for name in options["tags"] for k in (0, 1)]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    stop.set()
    for thread in threads:
        thread.join()
    ids.close()
    try:
        ids.next(options["tags"][0])
    except MarchError as error:
        say("closed", error.kind.value if error.kind is Kind.CLOSED else error)


main()
