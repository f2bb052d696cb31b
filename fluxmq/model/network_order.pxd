# The compiled form of ``network_order``: in each module that uses them, so that no call is left.

cdef inline unsigned int load_u16(const unsigned char* data, Py_ssize_t at) noexcept nogil:
    return (data[at] << 8) | data[at + 1]


cdef inline unsigned int load_u32(const unsigned char* data, Py_ssize_t at) noexcept nogil:
    return (<unsigned int> data[at] << 24) | (data[at + 1] << 16) | (data[at + 2] << 8) | data[at + 3]


cdef inline unsigned long long load_u64(const unsigned char* data, Py_ssize_t at) noexcept nogil:
    return (<unsigned long long> load_u32(data, at) << 32) | load_u32(data, at + 4)


cdef inline void store_u32(unsigned char* data, Py_ssize_t at, unsigned int number) noexcept nogil:
    data[at] = number >> 24
    data[at + 1] = (number >> 16) & 0xFF
    data[at + 2] = (number >> 8) & 0xFF
    data[at + 3] = number & 0xFF


cdef inline void store_u64(unsigned char* data, Py_ssize_t at, unsigned long long number) noexcept nogil:
    store_u32(data, at, <unsigned int> (number >> 32))
    store_u32(data, at + 4, <unsigned int> number)


cdef inline void store_u16(unsigned char* data, Py_ssize_t at, unsigned int number) noexcept nogil:
    data[at] = (number >> 8) & 0xFF
    data[at + 1] = number & 0xFF

