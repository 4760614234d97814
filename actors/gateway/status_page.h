/* The page behind GET /: one file without outside resources that reads /metrics, /health/ready and /version. */
#ifndef WEFT_GATEWAY_STATUS_PAGE_H
#define WEFT_GATEWAY_STATUS_PAGE_H

extern const char gw_status_page[];

#endif
