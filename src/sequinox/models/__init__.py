"""Ready models: functions that return a composed layer."""

from ._recurrent_net import recurrent_net as recurrent_net
