"""What every part of the pipeline uses: files, commands, sources."""
