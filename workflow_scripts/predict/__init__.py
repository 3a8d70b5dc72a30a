"""What every cell will do, before anything is measured."""
