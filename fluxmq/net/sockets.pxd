# The module's functions, and declarations of the C library that Cython does not ship: sockets, ancillary data,
# names of addresses.

cpdef Py_ssize_t receive(int fd, bytearray target, Py_ssize_t start, Py_ssize_t end) except -3
cpdef Py_ssize_t send(int fd, object data, Py_ssize_t start, Py_ssize_t end) except -2

cdef extern from "sys/socket.h" nogil:
    ctypedef unsigned int socklen_t
    cdef struct sockaddr:
        unsigned short sa_family
    cdef struct sockaddr_storage:
        unsigned short ss_family
    cdef struct iovec:
        void* iov_base
        size_t iov_len
    cdef struct msghdr:
        iovec* msg_iov
        size_t msg_iovlen
        void* msg_control
        size_t msg_controllen
    cdef struct cmsghdr:
        size_t cmsg_len
        int cmsg_level
        int cmsg_type
    int AF_INET, SOL_SOCKET, SCM_RIGHTS, SOCK_NONBLOCK, SOCK_CLOEXEC
    int accept4(int fd, sockaddr* address, socklen_t* size, int flags)
    Py_ssize_t sendmsg(int fd, msghdr* message, int flags)
    size_t CMSG_SPACE(size_t length)
    size_t CMSG_LEN(size_t length)
    cmsghdr* CMSG_FIRSTHDR(msghdr* message)
    unsigned char* CMSG_DATA(cmsghdr* header)

cdef extern from "netinet/in.h" nogil:
    cdef struct in_addr:
        unsigned int s_addr
    cdef struct sockaddr_in:
        unsigned short sin_port
        in_addr sin_addr
    unsigned short ntohs(unsigned short number)

cdef extern from "netdb.h" nogil:
    int NI_NUMERICHOST, NI_NUMERICSERV
    int getnameinfo(sockaddr* address, socklen_t size, char* host, socklen_t host_size, char* service, socklen_t service_size, int flags)

# An IPv6 address with the name of its interface takes 63.
cdef enum:
    PEER_CHARACTERS_MAX = 96
    SERVICE_CHARACTERS_MAX = 8
