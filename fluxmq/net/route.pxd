cdef class Route:
    cdef public list targets, links, groups, queues
