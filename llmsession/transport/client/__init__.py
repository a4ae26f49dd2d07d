"""Remote sessions, over a link that outlives its connections."""
