"""Word vectors from text that every machine has: the docstrings of Python's standard library.

Words are in the order of the text, files in the order of their names; tests and what is installed beside are left out.
So the corpus, whose checksum is kept, is that of a version of Python. Vectors are the leading singular vectors of
positive pointwise mutual information within a few words, times roots of the singular values.
"""

import ast
import hashlib
import re
import sys
import sysconfig
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.linalg import svds

LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo"}
WINDOW, LEAST = 5, 5  # words on either side; times that a word is there


class Corpus(NamedTuple):
    """Words of a text as numbers, and vectors of the words."""

    text: np.ndarray  # (T,) of words that are in the vocabulary
    vectors: np.ndarray  # (V, d) centred over the text, of mean square σ² there
    about: dict


def docstrings():
    """Docstrings of the standard library, in order."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix()):
        if LEFT_OUT & set(path.relative_to(root).parts):
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield ast.get_docstring(node) or ""


@cache
def corpus(d, sigma):
    """The corpus with vectors of d dimensions."""
    words = [word for text in docstrings() for word in re.findall("[a-z]+", text.lower())]
    counts = Counter(words)
    vocabulary = sorted((word for word in counts if counts[word] >= LEAST), key=lambda word: (-counts[word], word))
    number = {word: k for k, word in enumerate(vocabulary)}
    text = np.array([number[word] for word in words if word in number])
    V = len(vocabulary)
    pairs = [(text[:-k], text[k:]) for k in range(1, WINDOW + 1)]
    rows, columns = (np.concatenate(each) for each in zip(*pairs, strict=True))
    counted = coo_matrix((np.ones(len(rows)), (rows, columns)), shape=(V, V)).tocsr()
    counted = (counted + counted.T).tocoo()
    margin = np.asarray(counted.sum(axis=0)).ravel()
    information = np.log(counted.data * margin.sum() / (margin[counted.row] * margin[counted.col]))
    positive = coo_matrix((np.maximum(information, 0), (counted.row, counted.col)), shape=(V, V)).tocsr()
    U, size, _ = svds(positive, k=d, v0=np.ones(V), solver="arpack")
    vectors = U * np.sqrt(size)
    vectors = vectors - vectors[text].mean(axis=0)
    vectors *= sigma / np.sqrt(np.mean(vectors[text] ** 2))
    about = {
        "words": len(words), "vocabulary": V, "text": len(text), "python": sys.version.split()[0],
        "sha256": hashlib.sha256(" ".join(words).encode()).hexdigest()[:16],
    }  # fmt: skip
    return Corpus(text, vectors, about)
