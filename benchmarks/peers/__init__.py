"""The same work with llmsession and with its peers, side by side: ``python -m benchmarks.peers``.

In: peers from their registry, each installed into an environment of its own. Out: a table, plots
and the figures as JSON. Every peer talks to a strict server over HTTP, which writes down what it
was sent; a peer is run by its adapter in ``adapters/``, a script that imports the peer alone.
"""
