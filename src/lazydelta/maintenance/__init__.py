"""What a table needs after commits, done once, in a thread, or in a process of its own."""
