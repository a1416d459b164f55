"""`interlock demo`: a support agent, durable on Temporal, whose refunds wait for a person at the terminal."""
