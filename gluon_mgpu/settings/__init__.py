"""Settings of the chapters, each declared once: command line, devices, data and run made from them, resuming."""
