"""Tables of iteration times as people write them."""

from __future__ import annotations

TABLE = """model,strategy,p,batch,seconds,forward,warmup
net,serial,1,8,0.5,0.2,1
net,serial,1,8,0.25,0.1,0
net,ddp,2,16,0.375,0.1,0
"""


STEPS = [
    {
        "ph": "X",
        "cat": "user_annotation",
        "name": f"ProfilerStep#{n}",
        "ts": 1000.0 * n,
        "dur": 500,
        "tid": 1,
    }
    for n in range(3)
]
