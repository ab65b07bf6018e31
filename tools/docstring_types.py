"""Griffe extension that shows the types of parameters as they are written in the docstrings.

Methods without docstring show that of the method that they override.

Griffe would parse ``np.ndarray, (n, 10), float32`` as a Python tuple and ``path-like`` as a difference, and would show
backquotes.
"""
import griffe


class DocstringTypes(griffe.Extension):
    """Extension that turns the types in docstrings back into text."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: object) -> None:
        """Convert all types when the package has been loaded."""
        self._convert(pkg)

    def _convert(self, owner: griffe.Object) -> None:
        for section in owner.docstring.parsed if owner.docstring else []:
            for element in section.value if isinstance(section.value, list) else []:
                annotation = getattr(element, 'annotation', None)
                if isinstance(annotation, (griffe.Expr, str)):
                    text = str(annotation).replace(' - ', '-').replace('`', '')
                    tuple_ = isinstance(annotation, griffe.ExprTuple) and not annotation.implicit
                    element.annotation = text[1:-1] if tuple_ else text
        for member in owner.members.values():
            if not member.is_alias:
                if owner.is_class and not member.docstring:
                    overridden = (base.members[member.name] for base in owner.mro() if member.name in base.members)
                    member.docstring = next((method.docstring for method in overridden), None)
                self._convert(member)
