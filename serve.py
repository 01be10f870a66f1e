"""The app behind gzip, for those who host it themselves: `python serve.py` (port 8501, or $PORT).

Streamlit does not compress what it serves; gzip cuts a first load from 7.2 MB to 1.4 MB. `streamlit run app.py` works
just the same without it.
"""

import os

import streamlit as st
import uvicorn
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware

app = st.App("app.py", middleware=[Middleware(GZipMiddleware, minimum_size=1000)])

if __name__ == "__main__":
    uvicorn.run(app, host="0.0.0.0", port=int(os.environ.get("PORT", "8501")), log_level="warning")
