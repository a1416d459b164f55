"""The demo's app for a deployment: a worker makes the shop's database where there is none yet."""

import os
from pathlib import Path

from interlock.demo import settings
from interlock.demo.agent import make_app, make_model
from interlock.demo.orders import Orders

_orders = Orders(Path(os.environ.get(settings.DATABASE_VARIABLE, "orders.db")))
_orders.create()
app = make_app(_orders, make_model())
