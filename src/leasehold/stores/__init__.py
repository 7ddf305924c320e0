"""What each backend means, behind five verbs. A new store is one file in here and its wire."""
