"""Write a deployment of what a study promises: how to serve it, and how to watch that the promise is kept."""
