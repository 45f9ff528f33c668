"""The commands of the NXP backend's manual."""
