"""Trained networks as ONNX models: conversion to ONNX operators, comparison with the network, and writing."""
