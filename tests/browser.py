"""The Chromium of this machine, without which the tests that need one are skipped."""

from __future__ import annotations

import shutil

BROWSER = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
