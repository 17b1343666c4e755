"""The broker's settings for TLS and logins, with Kafka's names. `BrokerConfig` has them, too.

Each one can also be set for one listener only, as `listener.name.NAME.KEY`.
"""

from __future__ import annotations

import msgspec

from oncelog.broker.config.setting_types import NO_SECRET, ClientAuth, Int0, Int1, Long0, Long1, StoreType, TextList
from oncelog.net.credentials import Secret


class SecuritySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings. An empty text or secret means that the setting is not set."""

    ssl_keystore_location: str = ""
    """File with the broker's key and certificates, as PEM or PKCS12. If it changes, the broker reads it again."""
    ssl_keystore_type: StoreType = "JKS"
    """PEM or PKCS12. The broker detects the format from the file's content. Convert JKS files first."""
    ssl_keystore_password: Secret = NO_SECRET
    """Password of a PKCS12 file."""
    ssl_keystore_key: Secret = NO_SECRET
    """The broker's private key itself, as PEM."""
    ssl_keystore_certificate_chain: Secret = NO_SECRET
    """The broker's certificates themselves, as PEM."""
    ssl_key_password: Secret = NO_SECRET
    """Password of an encrypted private key in PEM."""
    ssl_truststore_location: str = ""
    """File with the certificates of the authorities that sign client certificates, as PEM or PKCS12. If it changes, the
    broker reads it again."""
    ssl_truststore_type: StoreType = "JKS"
    """PEM or PKCS12. The broker detects the format from the file's content. Convert JKS files first."""
    ssl_truststore_password: Secret = NO_SECRET
    """Password of a PKCS12 file."""
    ssl_truststore_certificates: Secret = NO_SECRET
    """The certificates of the authorities themselves, as PEM."""
    ssl_client_auth: ClientAuth = "none"
    """Whether clients need a certificate: `required`, `requested` (they may have one), or `none`."""
    ssl_principal_mapping_rules: str = "DEFAULT"
    """Rules that make the user of a client from the name in its certificate, as `RULE:PATTERN/REPLACEMENT/[LU]`.
    `DEFAULT` is the whole name, such as `CN=alice,O=shop`."""
    ssl_enabled_protocols: TextList = "TLSv1.2,TLSv1.3"
    """The TLS versions that clients may use."""
    ssl_cipher_suites: TextList = ""
    """The TLS 1.2 cipher suites that clients may use, by their standard names. Default: those of OpenSSL."""
    ssl_endpoint_identification_algorithm: str = "https"
    """With `https`, another broker's certificate must contain that broker's host name. Empty: no check."""
    ssl_allow_dn_changes: bool = False
    """Whether AlterConfigs may replace a listener's certificate by one with another name."""
    ssl_allow_san_changes: bool = False
    """Whether AlterConfigs may replace a listener's certificate by one that lacks some of its host names."""
    sasl_enabled_mechanisms: TextList = "GSSAPI"
    """Mechanisms with which clients may log in: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER. Kafka's default,
    GSSAPI, is not supported."""
    sasl_mechanism_inter_broker_protocol: str = "GSSAPI"
    """The mechanism with which brokers log in to each other. Kafka's default, GSSAPI, is not supported."""
    sasl_jaas_config: Secret = NO_SECRET
    """The line of a login module, such as `...PlainLoginModule required user_alice="...";`. Set it for a listener and a
    mechanism, as `listener.name.NAME.plain.sasl.jaas.config`."""
    sasl_server_callback_handler_class: str = ""
    """The class that checks logins, such as
    `org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler`. Other Java classes are
    refused."""
    sasl_oauthbearer_jwks_endpoint_url: str = ""
    """Where the identity provider has its public keys: an https, http or file URL. OAUTHBEARER needs it."""
    sasl_oauthbearer_jwks_endpoint_refresh_ms: Long1 = 3_600_000
    """Time between two requests for the keys. A file is read each second."""
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: Long0 = 100
    """Pause after the first failed request for the keys. It doubles with each failure."""
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: Long0 = 10_000
    """Longest pause after failed requests for the keys."""
    sasl_oauthbearer_expected_issuer: str = ""
    """The issuer (`iss`) that a token must have. Default: any."""
    sasl_oauthbearer_expected_audience: TextList = ""
    """Audiences (`aud`), of which a token must have one. Default: tokens must have no audience."""
    sasl_oauthbearer_clock_skew_seconds: Int0 = 30
    """How much the clocks of broker and identity provider may differ."""
    sasl_oauthbearer_scope_claim_name: str = "scope"
    """The claim of a token with its scope, whose form is checked."""
    sasl_oauthbearer_sub_claim_name: str = "sub"
    """The claim of a token with the user's name."""
    sasl_oauthbearer_jwt_validator_class: str = "org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator"
    """The class that checks tokens: this one, or `BrokerJwtValidator`, which does the same. Others are refused."""
    sasl_oauthbearer_token_endpoint_url: str = ""
    """Where this broker gets the tokens with which it logs in to other brokers: an https, http or file URL."""
    sasl_oauthbearer_client_credentials_client_id: str = ""
    """The broker's client id at that address."""
    sasl_oauthbearer_client_credentials_client_secret: Secret = NO_SECRET
    """The secret of that client id."""
    sasl_oauthbearer_scope: str = ""
    """The scope that the broker requests for its tokens."""
    sasl_oauthbearer_header_urlencode: bool = False
    """Whether the broker encodes its client id and secret as in a URL."""
    sasl_oauthbearer_jwt_retriever_class: str = "org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever"
    """The class that gets the broker's tokens: this one, `ClientCredentialsJwtRetriever` or `FileJwtRetriever`."""
    sasl_login_callback_handler_class: str = ""
    """The class that gets the broker's tokens in older settings:
    `org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler`."""
    sasl_server_max_receive_size: Int1 = 524_288
    """Largest request before a login, in bytes."""
    connections_max_reauth_ms: Long0 = 0
    """Clients must log in again after this time. 0: never."""
    connection_failed_authentication_delay_ms: Int0 = 100
    """How long the broker waits before it closes the connection after a failed login."""
