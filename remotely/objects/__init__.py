"""The user's class: its introspection, the marks on its methods, its instances."""
