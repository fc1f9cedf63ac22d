"""Parses an expression by its grammar (docs/expressions.md), with one function for each level of precedence.

or < and < not < comparison < + - < * / % < sign
"""

from collections.abc import Callable

from strobe.expressions.nodes import (
    AND,
    COUNTS,
    EQUALITIES,
    EVENTS,
    NEGATE,
    NOT,
    OR,
    ORDERINGS,
    Count,
    Expression,
    ExpressionError,
    Literal,
    Operation,
    Variable,
    count_text,
    is_condition,
)
from strobe.expressions.tokens import END, NAME, NUMBER, SIGN, STRING, Token, tokenize

_CONSTANTS = {"true": True, "false": False, "null": None}
_WORDS = (AND, OR, NOT, *_CONSTANTS)
_DEPTH_MAX = 50
"""Maximum nesting of brackets, signs and nots: the parser recurses into each."""
_OPERATIONS_MAX = 5_000


def parse(text: str) -> Expression:
    """Return the condition in `text`; raise ExpressionError if it is not a condition."""
    parser = _Parser(text)
    node = parser.disjunction()
    parser.require_end()
    return parser.condition(node)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = tokenize(text)
        self._place = 0
        self._depth = 0
        self._operations = 0

    def disjunction(self) -> Expression:
        return self._joined(OR, self._conjunction)

    def _conjunction(self) -> Expression:
        return self._joined(AND, self._negation)

    def _joined(self, word: str, inner: Callable[[], Expression]) -> Expression:
        nodes, column = [inner()], self._current.column
        while self._is_word(word):
            self._operator()
            nodes.append(inner())
        return Operation(column, word, tuple(map(self.condition, nodes))) if len(nodes) > 1 else nodes[0]

    def _negation(self) -> Expression:
        if not self._is_word(NOT):
            return self._comparison()
        column = self._operator().column
        return Operation(column, NOT, (self.condition(self._deeper(self._negation)),))

    def _comparison(self) -> Expression:
        node = self._sum()
        if self._current.text not in (*EQUALITIES, *ORDERINGS) or self._current.kind != SIGN:
            return node
        sign = self._operator()
        node = Operation(sign.column, sign.text, (node, self._sum()))
        if self._current.kind == SIGN and self._current.text in (*EQUALITIES, *ORDERINGS):
            raise self._error("two values are compared at a time; write: a < b and b < c")
        return node

    def _sum(self) -> Expression:
        return self._chain(("+", "-"), self._product)

    def _product(self) -> Expression:
        return self._chain(("*", "/", "%"), self._signed)

    def _chain(self, signs: tuple[str, ...], inner: Callable[[], Expression]) -> Expression:
        node = inner()
        while self._current.kind == SIGN and self._current.text in signs:
            sign = self._operator()
            node = Operation(sign.column, sign.text, (node, inner()))
        return node

    def _signed(self) -> Expression:
        if self._current.kind == SIGN and self._current.text == NEGATE:
            column = self._operator().column
            return Operation(column, NEGATE, (self._deeper(self._signed),))
        return self._primary()

    def _primary(self) -> Expression:
        token = self._current
        if token.kind in (NUMBER, STRING):
            return Literal(self._next().column, token.value)
        if token.kind == SIGN and token.text == "(":
            self._next()
            node = self._deeper(self.disjunction)
            self._require(")", f"the bracket of column {token.column} is not closed")
            return node
        if token.kind != NAME or (token.text in (AND, OR, NOT) and not token.quoted):
            raise self._error(f"a value is missing here{self._instead()}")
        self._next()
        if token.text in _CONSTANTS and not token.quoted:
            return Literal(token.column, _CONSTANTS[token.text])
        if self._is_sign("("):
            return self._count(token)
        return self._variable(token)

    def _count(self, word: Token) -> Expression:
        if word.text not in COUNTS:
            raise ExpressionError(
                self._text, word.column, f"there is no {word.text}(...); there are: {', '.join(COUNTS)}"
            )
        self._next()
        first = self._current
        name: str | None = None
        if self._current.kind == STRING:
            name = str(self._next().value)
        elif self._current.kind == NAME:
            name = self._next().text
        if not self._is_sign(")"):
            of, example = ("process", "a") if word.text == EVENTS else ("channel", "a->b")
            bare = self._between_brackets(first)
            written = count_text(word.text, bare) if bare else f'{word.text}("{example}")'
            raise self._error(f"{word.text}(...) takes one name of a {of}, or nothing; write {written}")
        self._next()
        return Count(word.column, word.text, name)

    def _between_brackets(self, first: Token) -> str:
        """Return the text from `first` to the closing bracket if it can be meant as one name, such as a->b; else ""."""
        text = self._text[first.column - 1 :].partition(")")[0].strip()
        return "" if set(text) & set("\"'`,(") else text

    def _variable(self, process: Token) -> Expression:
        path: list[str] = []
        while self._is_sign("."):
            self._next()
            if self._current.kind != NAME:
                raise self._error("the name of a variable is missing after the dot")
            path.append(self._next().text)
        if not path:
            problem = f"{process.text} alone is no value; write PROCESS.VARIABLE, or a text in quotes"
            raise ExpressionError(self._text, process.column, problem)
        return Variable(process.column, process.text, tuple(path))

    def condition(self, node: Expression) -> Expression:
        """Return `node`; raise if it can never be true or false."""
        if not is_condition(node):
            raise ExpressionError(
                self._text, node.column, "this is a value, not a condition; compare it with something"
            )
        return node

    def require_end(self) -> None:
        if self._current.kind != END:
            raise self._error(f"and, or, a comparison or the end is missing here{self._instead()}")

    def _require(self, sign: str, problem: str) -> None:
        if not self._is_sign(sign):
            raise self._error(problem)
        self._next()

    def _operator(self) -> Token:
        self._operations += 1
        if self._operations > _OPERATIONS_MAX:
            raise self._error(f"an expression has at most {_OPERATIONS_MAX:,} operations")
        return self._next()

    def _deeper(self, inner: Callable[[], Expression]) -> Expression:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise self._error(f"more than {_DEPTH_MAX} within each other are too many")
        node = inner()
        self._depth -= 1
        return node

    @property
    def _current(self) -> Token:
        return self._tokens[self._place]

    def _next(self) -> Token:
        token = self._current
        self._place += 1
        return token

    def _is_word(self, word: str) -> bool:
        token = self._current
        return token.kind == NAME and token.text == word and not token.quoted

    def _is_sign(self, sign: str) -> bool:
        return self._current.kind == SIGN and self._current.text == sign

    def _instead(self) -> str:
        token = self._current
        return "" if token.kind == END else f", instead of {token.text!r}"

    def _error(self, problem: str) -> ExpressionError:
        return ExpressionError(self._text, self._current.column, problem)
