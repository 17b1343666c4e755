"""Send the input of the other examples: twelve orders of three accounts, 78 in all. --twice sends the first two
again.
"""

from __future__ import annotations

import json

from tools import arguments

from oncelog import Producer

NUMBER = 12
AGAIN = 2


def main() -> None:
    options = arguments(__doc__, twice="send the first two orders a second time")
    numbers = [*range(NUMBER), *range(AGAIN if options.twice else 0)]
    with Producer(options.bootstrap) as producer:
        for number in numbers:
            value = json.dumps({"order": number, "amount": number + 1}).encode()
            producer.send(options.topic, value, key=f"account-{number % 3}".encode())
    print(f"sent: {len(numbers)} orders to topic {options.topic}")


if __name__ == "__main__":
    main()
