"""Trained networks as ONNX models, which other programs run.

    graph.py     a network's layers as ONNX operators
    file.py      the model, checked against the network and written
"""
