"""Runs as a program of its own: the resident server, started by its path with a configuration as JSON.

It has nothing to import by until it is told where packages lie.
"""

import json
import sys

if __name__ == "__main__":
    _config = json.loads(sys.argv[1])
    sys.path[:] = _config["path"]
    from atune.processes.resident import main

    main(_config)
