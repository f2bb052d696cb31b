# Bytes as C sees them. Holds no module's code, so there is no module of this name.

from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING

cdef inline unsigned char* pointer(object buffer):
    if isinstance(buffer, bytes):
        return <unsigned char*> PyBytes_AS_STRING(buffer)
    return <unsigned char*> PyByteArray_AS_STRING(buffer)
