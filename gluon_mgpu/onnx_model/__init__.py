"""Trained networks as ONNX models.

    operators.py    convert a network to ONNX operators
    file.py         compare the model with the network and write it
"""
