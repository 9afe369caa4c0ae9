"""The ChangeList: its schema, reading it and editing it; nothing runs here."""
