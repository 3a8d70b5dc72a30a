"""Write the files that serve a setting of a study and that watch whether the server does what was measured."""
