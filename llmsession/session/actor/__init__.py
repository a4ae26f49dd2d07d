"""One live session: mailbox, actor, turn queue, turn runner, tools."""
