"""Explains errors of object stores to the user: the problem and what to do, never the content of a request."""

import errno
import re
import tempfile

_BUCKET_MISSING = ("NoSuchBucket", "ContainerNotFound", "bucket does not exist")
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the role of the machine",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, or the service account of the machine",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or the identity of the machine",
}
_ENDPOINTS = {"s3": "AWS_ENDPOINT_URL and AWS_REGION", "gs": "the network", "az": "AZURE_STORAGE_ACCOUNT_NAME"}
# Metadata services from which a cloud machine gets its identity.
_IDENTITY_HOSTS = ("169.254.169.254", "169.254.170.2", "metadata.google.internal", "metadata/identity")
_CREDENTIAL_MISSING = re.compile(r"Missing \w*(Key|Token|Account)")
_STATUS = re.compile(r"status code: (\d{3}[A-Za-z ]*)")
_CODE = re.compile(r"<Code>(\w+)</Code>")


def is_bucket_missing(error: Exception) -> bool:
    return any(word in str(error) for word in _BUCKET_MISSING)


def explain(error: Exception, url: str) -> str:
    """Return what went wrong with a request to the store at `url`, and what to do."""
    if isinstance(error, OSError) and error.errno is not None:
        return _explain_spool(error)
    text = str(error)
    cloud = _cloud(url)
    answer = _answer(text)
    if is_bucket_missing(error):
        return "the bucket does not exist; make it, or check the URL and the endpoint"
    if any(host in text for host in _IDENTITY_HOSTS) or _CREDENTIAL_MISSING.search(text):
        return f"no credentials were found; set {_CREDENTIALS[cloud]}"
    kind = type(error).__name__
    if kind == "NotSupportedError" or "501" in answer:
        return f"the object store cannot do that ({answer or 'not supported'}); use one that has conditional writes"
    if "301" in answer or "AuthorizationHeaderMalformed" in answer:
        return f"the bucket is in another region ({answer}); check {_ENDPOINTS[cloud]}"
    if kind in ("PermissionDeniedError", "UnauthenticatedError"):
        allowed = "let this user list, read, write and delete there"
        return f"access was refused ({answer or 'no reason given'}); check {_CREDENTIALS[cloud]}, or {allowed}"
    if any(code in answer for code in ("429", "500", "502", "503", "504")):
        return f"the object store is overloaded or out of order ({answer}), also after several tries; try again later"
    if answer:
        return f"the object store refused it ({answer})"
    if "error sending request" in text or "timed out" in text or "HTTP error" in text:
        return f"the object store cannot be reached; check {_ENDPOINTS[cloud]}, then try again"
    return re.sub(r"\?\S*", "", text.partition("\n")[0])


def _answer(text: str) -> str:
    """Return the status and error code of the response, if any. Its other text may repeat the request."""
    status, code = _STATUS.search(text), _CODE.search(text)
    return " ".join(found[1].strip() for found in (status, code) if found)


def _cloud(url: str) -> str:
    scheme = url.partition("://")[0]
    return "s3" if scheme in ("s3", "s3a") else "gs" if scheme == "gs" else "az"


def _explain_spool(error: OSError) -> str:
    problem = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"the local copy: {problem}; make room in {tempfile.gettempdir()}, or set TMPDIR"
    return f"the local copy in {tempfile.gettempdir()}: {problem}"
