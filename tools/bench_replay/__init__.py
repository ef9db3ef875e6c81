"""How fast replays draw and how much memory they take, beside what others keep experience in."""
