"""The dashboard's entry script: `streamlit run app/main.py -- RUN`."""

import sys
from pathlib import Path

# Streamlit puts this file's folder on the path, not the one above it: without this line the
# dashboard starts only where the packages are installed.
_ROOT = str(Path(__file__).resolve().parents[1])
if _ROOT not in sys.path:
    sys.path.insert(0, _ROOT)

from app.frame import show  # noqa: E402 - because the line above makes it importable

show()
