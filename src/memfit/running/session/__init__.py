"""A session: every storage of one device inside a budget."""

from memfit.running.session.api import Session as Session
from memfit.running.session.api import active_session as active_session
from memfit.running.session.api import session as session
from memfit.running.session.mapped import map as map
from memfit.running.session.stats import Stats as Stats
