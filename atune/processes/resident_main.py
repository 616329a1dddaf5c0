"""The resident server's program, started by its path with a configuration as JSON.

It cannot import any package until the configuration says where packages are.
"""

import json
import sys

if __name__ == "__main__":
    _config = json.loads(sys.argv[1])
    sys.path[:] = _config["path"]
    from atune.processes.resident import main

    main(_config)
