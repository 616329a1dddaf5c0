"""The fork server, its workers, and the messages between them and the program."""
