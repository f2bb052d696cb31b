# The compiled form of ``octets``: in each module that uses it, so that no call is left.

from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING

ctypedef unsigned char* Octets
ctypedef unsigned char* Writable


cdef inline Octets pointer(object buffer):
    if isinstance(buffer, bytes):
        return <Octets> PyBytes_AS_STRING(buffer)
    return <Octets> PyByteArray_AS_STRING(buffer)


cdef inline unsigned int read_u32(const unsigned char* place) noexcept:
    return place[0] | (place[1] << 8) | (place[2] << 16) | (<unsigned int> place[3] << 24)


cdef inline int read_i32(const unsigned char* place) noexcept:
    return <int> read_u32(place)


cdef inline unsigned int load_u32(bytes data, Py_ssize_t at) noexcept:
    return read_u32(<const unsigned char*> PyBytes_AS_STRING(data) + at)


cdef inline int load_i32(bytes data, Py_ssize_t at) noexcept:
    return <int> load_u32(data, at)


cdef inline unsigned long long load_u64(bytes data, Py_ssize_t at) noexcept:
    return load_u32(data, at) | (<unsigned long long> load_u32(data, at + 4) << 32)


cdef inline long long load_i64(bytes data, Py_ssize_t at) noexcept:
    return <long long> load_u64(data, at)


cdef inline void write_u32(unsigned char* place, unsigned int number) noexcept:
    place[0] = number & 0xFF
    place[1] = (number >> 8) & 0xFF
    place[2] = (number >> 16) & 0xFF
    place[3] = number >> 24


cdef inline void write_u64(unsigned char* place, unsigned long long number) noexcept:
    write_u32(place, number & 0xFFFFFFFF)
    write_u32(place + 4, number >> 32)
