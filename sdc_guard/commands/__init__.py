"""The commands of `sdc-guard`, by what they are for."""
